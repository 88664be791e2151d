"""Diagnosis: which link between writing tips and using them is broken."""
