"""Prepares index queries and folds the constant factors into the head weights."""
