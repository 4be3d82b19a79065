"""Build folders of C++ sources into one shared library of torch operators, cached per user.

The compiler is called directly: no Python headers, no build tool and no environment variable is involved.
A library is keyed by its sources, the torch and compiler versions, the flags and the CPU, so a change of any
of them builds a new one and never disturbs a running process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from paths.progress import say

HEADERS = Path(__file__).parent
COMPILE_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fvisibility=hidden", "-w")
BUILD_TIMEOUT_S = 600
_built_s: list[float] = []


class CppUnavailable(RuntimeError):
    """The C++ kernels cannot be built or loaded here; the message says why in one line."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A flavour of the same sources: `native` for this CPU, `portable` for the compiler's baseline."""

    name: str
    flags: tuple[str, ...]


NATIVE = Variant(name="native", flags=("-march=native",))
PORTABLE = Variant(name="portable", flags=())


def cache_root() -> Path:
    """Where libraries are kept: XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dsa-path-harness"


def find_compiler() -> str:
    """Path of a C++ compiler. Raises CppUnavailable."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise CppUnavailable("no C++ compiler on the PATH (g++, c++ or clang++)")


def build_library(namespace: str, sources: Sequence[Path], variant: Variant = NATIVE) -> Path:
    """Path of the library that registers `sources` under `torch.ops.<namespace>`; built if it is not cached.

    Two processes may call this at once: the second waits for the first. Raises CppUnavailable.
    """
    compiler = find_compiler()
    folder = cache_root() / f"{namespace}-{_fingerprint(compiler, namespace, sources, variant)}"
    library = folder / "ops.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                say("building C++ kernels, once per machine")
                started = time.perf_counter()
                _compile(compiler, namespace, sources, variant, library)
                _built_s.append(time.perf_counter() - started)
    except OSError as error:
        raise CppUnavailable(f"cannot build the C++ kernels in {folder}: {error}") from error
    return library


def build_seconds() -> float:
    """Seconds that this process has spent building libraries."""
    return sum(_built_s, 0.0)


def _fingerprint(compiler: str, namespace: str, sources: Sequence[Path], variant: Variant) -> str:
    digest = hashlib.sha256()
    for path in [*sorted(sources), *sorted(HEADERS.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    for text in (namespace, torch.__version__, *COMPILE_FLAGS, *variant.flags, _cpu_flags()):
        digest.update(text.encode() + b"\0")
    digest.update(_run([compiler, "--version"]).encode())
    return digest.hexdigest()[:16]


def _cpu_flags() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.machine() + platform.processor()
    lines = cpuinfo.read_text().splitlines()
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, namespace: str, sources: Sequence[Path], variant: Variant, library: Path) -> None:
    """Compile in as many units as there are cores: parsing torch's headers costs more than the kernels."""
    root = Path(torch.__file__).parent
    units = min(len(sources), os.cpu_count() or 1, 4)
    flags = [*COMPILE_FLAGS, *variant.flags, f"-I{HEADERS}", f"-isystem{root / 'include'}"]
    flags += [f"-DOP_NAMESPACE={namespace}", "-DAT_PARALLEL_OPENMP=1"]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        commands, objects = [], []
        for number in range(units):
            unit = Path(scratch) / f"unit{number}.cpp"
            unit.write_text("".join(f'#include "{path}"\n' for path in sorted(sources)[number::units]))
            objects.append(str(unit.with_suffix(".o")))
            commands.append([compiler, *flags, "-c", str(unit), "-o", objects[-1]])
        with ThreadPoolExecutor(units) as pool:
            list(pool.map(_run, commands))
        linked = Path(scratch) / "ops.so"
        # torch brings its own OpenMP runtime into the process; linking a second one would split the threads
        libraries = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
        _run([compiler, "-shared", *objects, *libraries, f"-Wl,-rpath,{root / 'lib'}", "-o", str(linked)])
        linked.replace(library)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CppUnavailable(f"{Path(command[0]).name}: {error}") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        last = errors[-1].strip() if errors else f"exit status {done.returncode}"
        raise CppUnavailable(f"{Path(command[0]).name} failed: {last}")
    return done.stdout
