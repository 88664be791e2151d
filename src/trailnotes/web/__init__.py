"""Security middleware and listening socket shared by all web servers (extra `web`)."""
