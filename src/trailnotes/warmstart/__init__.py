"""Start models: scripted episodes to imitate, a small model from scratch, supervised fine-tuning."""
