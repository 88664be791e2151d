"""An address for agents of any make: they are shown tips, trained and remembered for without knowing it.

To a run an agent is an environment: its requests are the observations, what the model answers is the action. So groups,
modes, panels, memories and methods are those of every other environment.
"""
