"""Check cases of fused_q: every index format, odd row and head counts, layers that rank nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import Rotary
from paths.kernels.cases import Call, Case, close, randn, rows_far_apart
from paths.kernels.mla_cache_write.cases import ROWS, SOURCES

POSITIONS = 4096


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's widths and formats; index_dtype None is a step that ranks nothing."""

    heads: int = 3
    nope: int = 32
    latent: int = 128
    rope: int = 64
    index_heads: int = 5
    dim: int = 128
    index_dtype: str | None = "bf16"
    interleaved: bool = True
    index_interleaved: bool = False
    hadamard: bool = False
    source: str = "bf16"

    def storing(self, index_dtype: str | None, *, hadamard: bool) -> Shape:
        return replace(self, index_dtype=index_dtype, hadamard=hadamard)


FORMATS = (
    Shape(index_dtype="float32", source="float32"),
    Shape(index_dtype="bf16", index_interleaved=True),
    Shape(index_dtype="fp8"),
)
OTHERS = {
    "hadamard": Shape(index_dtype="fp8", hadamard=True, source="float32"),
    "nothing ranked": Shape(index_dtype=None),
    "narrow": Shape(
        heads=4, nope=24, latent=32, rope=16, index_heads=32, dim=32, index_dtype="fp8", source="float32"
    ),
    "odd widths": Shape(
        heads=17, nope=20, latent=48, rope=16, index_heads=33, dim=24, index_dtype="float32", source="float32"
    ),
    "half-split": Shape(interleaved=False, index_interleaved=True, source="float32"),
}


def check_cases() -> list[Case]:
    formats = [
        Case(f"{shape.index_dtype}/{rows} rows", partial(make_call, rows=rows, shape=shape))
        for shape in FORMATS
        for rows in ROWS
    ]
    others = [
        Case(f"{name}/{rows} rows", partial(make_call, rows=rows, shape=shape))
        for name, shape in OTHERS.items()
        for rows in (1, 7)
    ]
    far = [Case("far apart/3 rows", partial(make_call, rows=3, shape=OTHERS["narrow"], far=True))]
    wide = Shape(heads=128, nope=128, latent=512, index_heads=64, index_dtype="fp8", hadamard=True)
    return [*formats, *others, *far, Case("V3.2/65 rows", partial(make_call, rows=65, shape=wide), slow=True)]


def make_call(
    generator: torch.Generator, device: torch.device, *, rows: int, shape: Shape, far: bool = False
) -> Call:
    """far: the projected rows lie far apart in memory."""
    scored = shape.index_dtype is not None
    dtype = SOURCES[shape.source]
    width = shape.heads * (shape.nope + shape.rope) + scored * shape.index_heads * shape.dim
    projected = randn(generator, rows, width, device=device, dtype=dtype)
    # GEMM inputs are small integers: products and sums are exact in any order
    halves = projected[:, : shape.heads * (shape.nope + shape.rope)].unflatten(1, (shape.heads, -1))
    halves[..., : shape.nope] = halves[..., : shape.nope].round()
    if far:
        projected = rows_far_apart(rows, width, dtype, device).copy_(projected)
    w_uk = randn(generator, shape.heads, shape.nope, shape.latent, device=device).round().to(dtype)
    wide = randn(generator, rows, shape.index_heads + 7, device=device, dtype=dtype)
    angles = torch.rand((POSITIONS, shape.rope // 2), generator=generator) * 6.28
    rotary = Rotary(
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        interleaved=shape.interleaved,
        index_interleaved=shape.index_interleaved,
    )
    positions = torch.randint(0, POSITIONS, (rows,), generator=generator).to(device)

    def outputs(result: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
        packed, prepared, weights = result
        if not scored:
            return {"q": packed}
        # W / w carries the scale of q': only their product has a meaning of its own
        return {"q": packed, "weighted": prepared.float() * weights[..., None]}

    steps = {"float32": (1e-5, 1e-5), "bf16": (2.0**-7, 1e-3), "fp8": (2.0**-3, 1e-3)}
    stored = max(steps[shape.source], steps[shape.index_dtype or shape.source])
    return Call(
        args=(projected, w_uk, rotary, positions, wide[:, 7:] if scored else None),
        kwargs={
            "index_dim": shape.dim,
            "index_dtype": shape.index_dtype or "bf16",
            "hadamard": shape.hadamard,
        },
        outputs=outputs,
        tolerance={"q": close(*steps[shape.source]), **({"weighted": close(*stored)} if scored else {})},
    )
