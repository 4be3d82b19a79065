"""`cmd=doctor`: what this machine can run and measure, what is missing, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

import psutil
from rich.markup import escape

from harness.cell import Cell
from harness.composition import Composer
from harness.console import out
from harness.environment import code_revision, read_line
from harness.errors import ExitCode
from harness.hardware import (
    cpu_model,
    gpu,
    has_compiler,
    has_gpu_device,
    torch_build,
    usable_cores,
)
from harness.memory import needed_bytes
from harness.selection import make_cell

MAIN_JOB = ("+path=dsa_mrv2", "concurrency=1,1024")
_GIB = 1 << 30
_GOOD_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
_BUSY = 0.25  # other load, as a share of the cores, beyond which timings suffer


class Level(StrEnum):
    OK = "OK"
    WARN = "WARN"
    MISSING = "MISSING"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the diagnosis. `remedy` is empty when all is well."""

    level: Level
    subject: str
    text: str
    remedy: str = ""
    fatal: bool = False  # the main job cannot run


def print_diagnosis(composer: Composer, choice: Sequence[str]) -> ExitCode:
    """Print all findings; USAGE when the main job cannot run."""
    findings = list(diagnose(_main_cell(composer, choice)))
    color = {Level.OK: "green", Level.WARN: "yellow", Level.MISSING: "red"}
    for finding in findings:
        text = escape(finding.text + (f" → {finding.remedy}" if finding.remedy else ""))
        level = f"[{color[finding.level]}]{finding.level:<8}[/]"
        out.print(f"{level}{finding.subject:<14}{text}", soft_wrap=True)
    fatal = any(finding.fatal for finding in findings)
    verdict = "cannot run here: mend what is marked MISSING" if fatal else "can run here"
    out.print(f"\nThe main job (python -m harness {' '.join(MAIN_JOB)}) {verdict}.", soft_wrap=True)
    return ExitCode.USAGE if fatal else ExitCode.OK


def _main_cell(composer: Composer, choice: Sequence[str]) -> Cell:
    """The cell of the command line; the main job's path if none is given."""
    overrides = tuple(choice)
    if not any(text.startswith("+path=") for text in overrides):
        overrides = (MAIN_JOB[0], *overrides)
    return make_cell(composer, overrides, revision=code_revision())


def diagnose(cell: Cell) -> Iterator[Finding]:
    """Every finding, from what stops the job to what only disturbs it."""
    yield _torch()
    yield _cores()
    yield _memory(cell)
    yield _compiler()
    yield _gpu()
    yield _package("triton", "GPU kernels", "comes with a CUDA or ROCm build of torch")
    yield _package("transformers", "numerical oracle and rival", 'pip install "transformers>=5.16"')
    yield _governor()
    yield _other_load()
    yield _clock()


def _torch() -> Finding:
    found = torch_build()
    if found is None:
        return Finding(
            level=Level.MISSING, subject="torch", text="not installed", remedy="pip install torch", fatal=True
        )
    return Finding(level=Level.OK, subject="torch", text=found)


def _cores() -> Finding:
    cores = usable_cores()
    text = f"{cores} usable of {os.cpu_count()} ({cpu_model()})"
    if cores < 2:
        return Finding(
            level=Level.WARN,
            subject="cores",
            text=text,
            remedy="give it 2 or more: engine and client share one, and the client's lag enters the numbers",
        )
    return Finding(level=Level.OK, subject="cores", text=text)


def _memory(cell: Cell) -> Finding:
    available, need = psutil.virtual_memory().available, needed_bytes(cell)
    text = (
        f"{available / _GIB:.1f} GiB free; {cell.engine.model.name} needs about {need / _GIB:.1f} GiB"
        f" (weights and a KV cache of {cell.engine.kv_pages} pages)"
    )
    if cell.engine.device == "cpu" and need > available:
        remedy = "lower engine.kv_pages, choose a smaller model, or free memory"
        return Finding(level=Level.MISSING, subject="memory", text=text, remedy=remedy, fatal=True)
    return Finding(level=Level.OK, subject="memory", text=text)


def _compiler() -> Finding:
    if has_compiler():
        return Finding(level=Level.OK, subject="C++ compiler", text="found")
    return Finding(
        level=Level.MISSING,
        subject="C++ compiler",
        text="none: generic_mrv1 cannot compile, dsa_mrv2 falls back from C++ ops to torch",
        remedy="install g++ (Debian: apt install g++) or set CXX",
    )


def _gpu() -> Finding:
    found = gpu()
    if found is None and not has_gpu_device():
        return Finding(level=Level.OK, subject="GPU", text="none: everything but GPU speed can be measured")
    if found is None:
        remedy = "pip install nvidia-ml-py to read its name, clocks and memory"
        return Finding(level=Level.WARN, subject="GPU", text="a device, but no NVML", remedy=remedy)
    name, capability = found
    text = f"{name}, capability {capability[0]}.{capability[1]}"
    if (torch_build() or "").endswith("+cpu"):
        return Finding(
            level=Level.WARN, subject="GPU", text=text, remedy="install a CUDA build of torch to use it"
        )
    return Finding(level=Level.OK, subject="GPU", text=text)


def _package(name: str, purpose: str, remedy: str) -> Finding:
    try:
        return Finding(level=Level.OK, subject=name, text=f"{version(name)} ({purpose})")
    except PackageNotFoundError:
        return Finding(level=Level.WARN, subject=name, text=f"not installed ({purpose})", remedy=remedy)


def _governor() -> Finding:
    governor = read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor is None:
        remedy = "if this is a virtual machine, compare only runs of one session, in pairs"
        text = "not readable: clocks may change between runs"
        return Finding(level=Level.WARN, subject="CPU governor", text=text, remedy=remedy)
    if governor != "performance":
        remedy = "cpupower frequency-set -g performance"
        return Finding(level=Level.WARN, subject="CPU governor", text=governor, remedy=remedy)
    return Finding(level=Level.OK, subject="CPU governor", text=governor)


def _other_load() -> Finding:
    load, cores = os.getloadavg()[0], usable_cores()
    text = f"{load:.2f} over the last minute, {cores} cores"
    if load > _BUSY * cores:
        remedy = "stop other work; what runs beside a measurement is part of it"
        return Finding(level=Level.WARN, subject="other load", text=text, remedy=remedy)
    return Finding(level=Level.OK, subject="other load", text=text)


def _clock() -> Finding:
    source = read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source is None:
        return Finding(
            level=Level.WARN,
            subject="clock source",
            text="not readable",
            remedy="measure on Linux where you can",
        )
    if source in _GOOD_CLOCKS:
        return Finding(level=Level.OK, subject="clock source", text=source)
    remedy = "boot with clocksource=tsc if the CPU has an invariant TSC: reading this clock is slow"
    return Finding(level=Level.WARN, subject="clock source", text=source, remedy=remedy)
