"""TextWorldExpress: eight families of text games in one Java process, some thousand steps a second."""
