"""What is on disk is whole or absent: files, lines, episodes as JSON, checkpoints."""
