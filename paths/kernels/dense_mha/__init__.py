"""Dense causal attention with keys and values of their own per head, for short prefills."""
