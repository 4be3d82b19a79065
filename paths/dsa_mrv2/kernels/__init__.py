"""Fused operations of this path: in each folder `composed.py` is the definition, `cpu.cpp` the kernel."""
