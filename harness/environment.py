"""Fingerprint of the machine, the versions and the code; and the environment that engines get.

Nothing here writes `os.environ`, and no heavy package is imported: versions come from metadata.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import paths
from harness.hardware import cpu_model, gpu, usable_cores

DISTRIBUTION = "dsa-path-harness"
PRODUCT = ("harness", "paths", "reports", "conf")  # what decides a number; tests and documents do not
PACKAGES = (
    "torch", "triton", "numpy", "matplotlib", "pyarrow", "pydantic", "hydra-core", "omegaconf",
    "safetensors", "tokenizers", "transformers", "lm-eval", "vllm", "sglang", "nvidia-ml-py",
)  # fmt: skip

# what an engine may inherit
ALLOWED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME",
    "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CC", "CXX",
})  # fmt: skip
# names that change what an engine does: blocked and recorded
RELEVANT_PREFIXES = (
    "VLLM_", "SGLANG_", "SGL_", "TORCH", "PYTORCH_", "INDUCTOR_", "NCCL_", "CUDA_", "CUBLAS_", "CUDNN_",
    "NVIDIA_", "TRITON_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "ATEN_", "DNNL_",
    "ONEDNN_", "PYTHON", "LD_", "MALLOC_", "HIP_", "HSA_", "ROCM_", "ROCR_", "HF_", "TRANSFORMERS_",
    "TOKENIZERS_", "FLASHINFER_", "DG_", "DEEP", "GLOO_", "UCX_", "HARNESS_",
)  # fmt: skip
LAUNCH_MARK = "HARNESS_LAUNCH"  # names the launch in every process that descends from it


def harness_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown (not installed)"


@cache
def code_revision() -> str:
    """`current_revision` when this process first asked."""
    return current_revision()


def current_revision() -> str:
    """Commit of the checkout that this code runs from; else the package version.

    With local changes of the product, "+dirty." and a hash of them: two different states are two revisions.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return f"v{harness_version()}"
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return f"v{harness_version()}"
    changes = _local_changes(root)
    return commit + (f"+dirty.{changes}" if changes else "")


def _local_changes(root: Path) -> str | None:
    """Hash of everything in the product's folders that differs from the commit; None without any."""
    difference = _git(root, "diff", "--binary", "HEAD", "--", *PRODUCT) or ""
    added = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *PRODUCT) or ""
    names = sorted(name for name in added.split("\0") if name)
    if not difference and not names:
        return None
    digest = hashlib.sha256(difference.encode(errors="surrogateescape"))
    for name in names:
        file = root / name
        content = file.read_bytes() if file.is_file() else b""  # it may be gone by now, or a link to nothing
        digest.update(f"\0{name}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:8]


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command; None where there is no git or it refuses."""
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        # a difference holds the bytes of files in any encoding
        result = subprocess.run(
            command, capture_output=True, text=True, errors="surrogateescape", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def engine_environment(
    parent: Mapping[str, str], *, threads: int, cache_dir: Path, launch_mark: str
) -> dict[str, str]:
    """The whole environment of an engine process."""
    own = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir / "inductor"),
        "TRITON_CACHE_DIR": str(cache_dir / "triton"),
        LAUNCH_MARK: launch_mark,
    }
    return child_environment(parent) | own


def child_environment(parent: Mapping[str, str]) -> dict[str, str]:
    """What any process of ours inherits, and where it finds the code."""
    allowed = {name: value for name, value in parent.items() if _is_allowed(name)}
    root = Path(next(iter(paths.__path__))).resolve().parent
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    if root not in installed:
        allowed["PYTHONPATH"] = str(root)  # a checkout: an engine must find the same code as the harness
    return allowed


def blocked_variables(parent: Mapping[str, str]) -> list[str]:
    """Names of set variables that would change what an engine does, and that engines do not get."""
    return sorted(n for n in parent if not _is_allowed(n) and n.upper().startswith(RELEVANT_PREFIXES))


def _is_allowed(name: str) -> bool:
    return name in ALLOWED or name.startswith("LC_")


def fingerprint(blocked: list[str]) -> dict[str, Any]:
    """Everything about this machine and software that explains a number; absent values are None."""
    memory = psutil.virtual_memory()
    found = gpu()
    return {
        "host": socket.gethostname(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "cores_installed": os.cpu_count(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "kernel": platform.release(),
        "os": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: _version_or_none(name) for name in PACKAGES},
        "revision": code_revision(),
        "boot_id": read_line("/proc/sys/kernel/random/boot_id"),
        "load_average": list(os.getloadavg()),
        "governor": read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clock_source": read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "gpu": {"name": found[0], "capability": list(found[1])} if found else None,
        "blocked_variables": blocked,
    }


def read_line(path: str) -> str | None:
    """A one-line file of the kernel; None where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _version_or_none(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
