"""Estimates for a dry run: what a training needs in memory, time and disk, and what would make it fit."""
