"""What a compiled kernel costs and uses, read from the assembler's report and the assembly."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CUDA_MATRIX = re.compile(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync)([\w.:]*)")
_HIP_MATRIX = re.compile(r"\b(v_mfma|v_smfmac)_(\w+)")
_DTYPES = re.compile(r"(?:^|\.)(e4m3|e5m2|bf16|f16|tf32|f32|f64|s8|u8)(?=\.|$)")
_TCGEN_KIND = re.compile(r"kind::(\w+)")
_FAMILY = {"wgmma.mma_async": "wgmma", "tcgen05.mma": "tcgen05", "mma.sync": "mma.sync"}


@dataclass(frozen=True)
class Binary:
    """Registers and spilled bytes of one thread, shared bytes of one block, matrix instructions by name."""

    registers: str
    spilled: int
    shared: int
    matrix: tuple[str, ...]


def inspect_cuda(ptx: str, arch: int, shared: int, *, fuse: bool) -> Binary:
    """Assembles `ptx` once more with Triton's ptxas, which tells registers and spills when asked (-v)."""
    report = _ptxas_report(ptx, arch, fuse=fuse)
    registers = re.search(r"Used (\d+) registers", report)
    stores = sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", report))
    loads = sum(int(n) for n in re.findall(r"(\d+) bytes spill loads", report))
    if registers is None:
        raise RuntimeError(f"ptxas reported no registers: {report.strip()}")
    return Binary(registers[1], max(stores, loads), shared, cuda_matrix(ptx))


def inspect_hip(amdgcn: str, shared: int) -> Binary:
    """From the metadata behind the assembly. Spilled scalar registers go to vector lanes, not to memory."""

    def count(key: str) -> int:
        found = re.search(rf"\.{key}:\s*(\d+)", amdgcn)
        if found is None:
            raise RuntimeError(f"the assembly has no .{key}")
        return int(found[1])

    registers = f"{count('vgpr_count')} v, {count('sgpr_count')} s"
    if count("sgpr_spill_count"):
        registers += f" (+{count('sgpr_spill_count')} s in lanes)"
    return Binary(registers, 4 * count("vgpr_spill_count"), shared, hip_matrix(amdgcn))


def cuda_matrix(ptx: str) -> tuple[str, ...]:
    """`wgmma e4m3`, `tcgen05 f8f6f4`, `mma.sync bf16`, ...: instruction and dtype of its operands."""
    found = set()
    for family, rest in _CUDA_MATRIX.findall(ptx):
        kind = _TCGEN_KIND.search(rest)
        dtypes = _DTYPES.findall(rest)
        # accumulator first, then the operands; mma.sync names the accumulator once more at the end
        operand = kind[1] if kind else (dtypes[1] if len(dtypes) > 1 else "?")
        found.add(f"{_FAMILY[family]} {operand}")
    return tuple(sorted(found))


def hip_matrix(amdgcn: str) -> tuple[str, ...]:
    """`mfma bf16`, `mfma f16`, `mfma fp8`, ...: v_mfma_f32_32x32x8_bf16 names shape, then operands."""
    found = set()
    for family, rest in _HIP_MATRIX.findall(amdgcn):
        operands = re.sub(r"^\w+?_\d+x\d+x\d+_?", "", rest).removesuffix("_1k")
        found.add(f"{family.removeprefix('v_')} {operands.split('_')[0]}")
    return tuple(sorted(found))


def _ptxas_report(ptx: str, arch: int, *, fuse: bool) -> str:
    """What ptxas says with the options that Triton gives it."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    ptxas: Any = get_ptxas(arch)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        options = ["-v", "-lineinfo", "--regAllocOptLevel=2", *([] if fuse else ["--fmad=false"])]
        command = [ptxas.path, *options, f"--gpu-name={sm_arch_from_capability(arch)}"]
        done = subprocess.run(
            [*command, str(source), "-o", str(Path(folder) / "kernel.cubin")],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"ptxas failed: {done.stderr.strip()[:300]}")
    return done.stderr
