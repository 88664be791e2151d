"""Advantages of episodes and steps, and novelty rewards."""
