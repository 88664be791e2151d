"""What every site of ours stands behind: who is answered, what browsers are told, and the port (extra `web`)."""
