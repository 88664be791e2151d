"""A critic for Retrospex: what an action is worth, learned offline from the episodes of finished runs."""
