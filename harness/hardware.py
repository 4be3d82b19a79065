"""What this machine is, found without importing torch."""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from paths.api import Platform, UserError


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


@cache
def cpu_model() -> str:
    """The processor's marketing name, or its architecture where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@cache
def gpu() -> tuple[str, tuple[int, int]] | None:
    """Name and compute capability of the first NVIDIA GPU; None without one or without pynvml."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return (name if isinstance(name, str) else name.decode()), (int(capability[0]), int(capability[1]))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def has_gpu_device() -> bool:
    """Whether the NVIDIA driver shows a device and CUDA_VISIBLE_DEVICES does not hide all of them."""
    return Path("/dev/nvidia0").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def torch_build() -> str | None:
    """Version of the installed torch, read from its metadata ("2.13.0+cpu")."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def has_python_headers() -> bool:
    """Whether Python.h is where this interpreter says that it belongs."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def has_compiler() -> bool:
    """Whether a C++ compiler is on the PATH (or named by CXX)."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "c++", "g++", "clang++"))


def detect_platform(device: Literal["auto", "cpu", "cuda"] = "auto") -> Platform:
    """The platform that `device` names. Raises UserError for cuda where there is none."""
    torch = torch_build() or ""
    usable = has_gpu_device() and not torch.endswith("+cpu")
    if device == "cuda" and not usable:
        why = "its torch is built for CPU only" if has_gpu_device() else "no NVIDIA device is visible"
        raise UserError(f"device=cuda: not on this machine ({why}); use device=cpu")
    if device == "cpu" or not usable:
        return Platform(device="cpu", compiler=has_compiler(), python_headers=has_python_headers())
    found = gpu()
    return Platform(
        device="cuda",
        capability=found[1] if found else None,
        compiler=has_compiler(),
        python_headers=has_python_headers(),
    )


def hardware_class(platform_: Platform) -> str:
    """What speed depends on, in a few words; part of a cell's identity."""
    found = gpu() if platform_.device != "cpu" else None
    return found[0] if found else f"{cpu_model()}, {usable_cores()} cores"
