"""The C heap of an engine's process: it keeps what a step frees, in large pages."""

from __future__ import annotations

import ctypes
from pathlib import Path

# glibc's names for `mallopt`
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no larger one on 64 bits
NEVER = 2**31 - 1
# Linux's names for `madvise`
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
HUGE_PAGE = 2 * 2**20
MAPS = Path("/proc/self/maps")


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


def use_huge_pages() -> bool:
    """Put what stands on the heap into pages of 2 MiB, where Linux does that at once. Returns whether it did.

    A step reads every weight of a small model. In pages of 4 KiB these are more than a core remembers
    addresses of, and where they lie, and so how they share its caches, differs from launch to launch.
    """
    libc = ctypes.CDLL(None)
    if not MAPS.exists() or not hasattr(libc, "madvise"):
        return False
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    parts = [line.split()[0] for line in MAPS.read_text().splitlines() if line.endswith("[heap]")]
    if not parts:
        return False
    first, end = int(parts[0].split("-")[0], 16), int(parts[-1].split("-")[1], 16)
    first, end = -(-first // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
    advised = first < end and libc.madvise(first, end - first, MADV_HUGEPAGE) == 0
    return bool(advised and libc.madvise(first, end - first, MADV_COLLAPSE) == 0)
