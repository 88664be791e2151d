"""Start models: scripted episodes to imitate, a small model of our own making, supervised fine-tuning."""
