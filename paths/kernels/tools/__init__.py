"""Proofs about the kernels: `python -m paths.kernels check`, `compile` and `bench`."""
