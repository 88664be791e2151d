"""Simulators in Java processes: start, call, watch and end them."""
