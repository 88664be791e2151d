"""Commands of single environments: their data, and servers for other programs and people."""
