"""Rows of a MoE batch sorted by expert into tiles of one expert each."""
