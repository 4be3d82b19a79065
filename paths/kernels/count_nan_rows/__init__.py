"""Rows of logits that hold a NaN, counted on the device."""
