"""Writes index keys to the paged index cache."""
