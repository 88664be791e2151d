"""A server for agents of any make, which are trained and remember without being changed.

To a run an agent is an environment: its requests are the observations, the model's answers are the actions. So groups,
modes, panels, memories and methods are those of every other environment.
"""
