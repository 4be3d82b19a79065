"""Rotary position embedding, interleaved or half-split."""
