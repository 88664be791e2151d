"""A memory for agents of any make, over the Model Context Protocol (extra `mcp`)."""
