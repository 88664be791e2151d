"""The window: run directories as pages, tips included, live while a run goes on (extra `web`)."""
