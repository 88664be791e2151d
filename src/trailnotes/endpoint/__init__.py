"""What everyone needs who asks an OpenAI-compatible server: the key, which failures pass, and how long to wait."""
