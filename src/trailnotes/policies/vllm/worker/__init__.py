"""The program of an engine, which runs by its file in the environment of vLLM."""
