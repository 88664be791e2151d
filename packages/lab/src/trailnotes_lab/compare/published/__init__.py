"""Published figures: as data, under which protocol, and ours beside them, never in one column."""
