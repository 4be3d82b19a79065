"""Fused operations of this path: one folder each, `composed.py` is the definition and `cpu.cpp` the kernel."""
