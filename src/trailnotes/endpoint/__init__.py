"""Client code shared by everything that calls an OpenAI-compatible server."""
