"""The methods: one file each, read top to bottom; no base class. `config/methods.py` names them all."""
