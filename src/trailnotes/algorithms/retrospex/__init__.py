"""Retrospex: a frozen policy, and a critic learned offline from the episodes of finished runs."""
