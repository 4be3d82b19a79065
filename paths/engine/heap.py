"""The C heap of an engine's process: memory that a step frees is there for the next one."""

from __future__ import annotations

import ctypes

# glibc's names for `mallopt`
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no larger one on 64 bits
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Stop the heap from giving freed memory back to the system. Returns whether the C library can be told.

    By default glibc does so above thresholds that move with what the process freed before: one launch of an
    engine faulted in the activations of every step again, and another launch never did.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    kept = libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    return bool(kept and libc.mallopt(M_TRIM_THRESHOLD, NEVER))
