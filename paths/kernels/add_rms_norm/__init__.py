"""Residual addition followed by RMSNorm of the float32 sum."""
