"""Group-limited sigmoid routing."""
