"""Diagnosis: the broken link between writing tips and using them."""
