"""An engine's process keeps what it frees: a step does not fault in its activations again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paths.engine import heap

CHILD = """
import resource
import torch
from paths.engine.heap import keep_freed_memory

if not keep_freed_memory():
    raise SystemExit(3)
torch.zeros(1024)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.full((96 * 2**8,), 1.0) for _ in range(100)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

warm = [faults() for _ in range(10)]
print(max(warm), sum(faults() for _ in range(10)))
"""


def child() -> tuple[int, int]:
    """Page faults of the worst of ten steps that hold 9 MB in small tensors, and the sum of ten more."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("this C library has no mallopt")
    assert done.returncode == 0, done.stderr
    worst, later = done.stdout.split()
    return int(worst), int(later)


def test_freed_memory_is_used_again_without_page_faults():
    worst, later = child()
    assert later < worst / 10


HUGE_CHILD = """
import ctypes
from pathlib import Path
from paths.engine.heap import keep_freed_memory, use_huge_pages

def huge_kib():
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith("[heap]")
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1])
    return total

keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
weights = libc.malloc(ctypes.c_size_t(16 * 2**20))
ctypes.memset(weights, 7, 16 * 2**20)
before = huge_kib()
use_huge_pages()
more = libc.malloc(ctypes.c_size_t(16 * 2**20))
ctypes.memset(more, 7, 16 * 2**20)
print(int(use_huge_pages()), before, huge_kib(), ctypes.string_at(weights, 16 * 2**20) == b"\\7" * 16 * 2**20)
"""


def test_what_stands_on_the_heap_moves_to_huge_pages():
    done = subprocess.run([sys.executable, "-c", HUGE_CHILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moved, before, after, same = done.stdout.split()
    assert same == "True"
    if moved == "0":
        pytest.skip("this system does not turn a heap into huge pages at once")
    assert int(before) == 0
    assert int(after) >= 30 * 1024


def test_a_system_without_such_maps_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(heap, "MAPS", tmp_path / "maps")
    assert not heap.use_huge_pages()
    heap.MAPS.write_text("7f00-7f01 r-xp 00000000 00:00 0    /lib/libc.so\n")
    assert not heap.use_huge_pages()
