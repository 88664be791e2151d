"""TextWorld: any compiled game, a folder of them, or TextWorld's own generators."""
