"""REMEMBERER: a table of (goal, observation, action) and its value, shown as examples with advice."""
