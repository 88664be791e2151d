"""ALFWorld: household tasks in text, played by the package's engine, in games of its data or made from its rooms."""
