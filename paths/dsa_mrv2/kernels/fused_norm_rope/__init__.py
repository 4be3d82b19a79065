"""Norms, RoPE and both cache writes between a layer's first and second projection."""
