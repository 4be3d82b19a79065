"""Tokens that may not be sampled."""
