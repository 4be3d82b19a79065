"""Check cases of fused_norm_rope: cache formats, odd row counts, narrow models, no indexer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import LatentNorms, Rotary
from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.cases import Call, Case, Tolerance, close, randn, rows_far_apart
from paths.kernels.index_k_write.cases import stored_keys
from paths.kernels.layouts import ds_mla_views
from paths.kernels.mla_cache_write.cases import ADJACENT, ROWS, SOURCES, cache_of, draw_slots, far_apart

POSITIONS = 4096


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's widths and formats; index_dtype None is a layer that shares its indexer."""

    q_rank: int = 192
    latent: int = 512
    rope: int = 64
    dim: int = 128
    kv_dtype: str = "bf16"
    index_dtype: str | None = "bf16"
    interleaved: bool = True
    index_interleaved: bool = False
    hadamard: bool = False
    source: str = "bf16"


FORMATS = (
    Shape(kv_dtype="float32", index_dtype="float32", source="float32"),
    Shape(kv_dtype="bf16", index_dtype="bf16", index_interleaved=True),
    Shape(kv_dtype="fp8", index_dtype="fp8", source="float32"),
    Shape(kv_dtype="fp8_ds_mla", index_dtype="fp8"),
)
OTHERS = {
    "hadamard": Shape(kv_dtype="fp8_ds_mla", index_dtype="fp8", hadamard=True),
    "shared indexer": Shape(kv_dtype="fp8_ds_mla", index_dtype=None),
    "narrow": Shape(
        q_rank=48, latent=32, rope=16, dim=32, kv_dtype="fp8", index_dtype="fp8", source="float32"
    ),
    "odd widths": Shape(q_rank=40, latent=48, rope=16, dim=24, kv_dtype="float32", index_dtype="float32"),
    "half-split": Shape(interleaved=False, index_interleaved=True),
}


def check_cases() -> list[Case]:
    formats = [
        Case(f"{shape.kv_dtype}/{rows} rows", partial(make_call, rows=rows, shape=shape))
        for shape in FORMATS
        for rows in ROWS
    ]
    others = [
        Case(f"{name}/{rows} rows", partial(make_call, rows=rows, shape=shape))
        for name, shape in OTHERS.items()
        for rows in (1, 7)
    ]
    far = [
        Case("far apart/4 rows", partial(make_call, rows=4, shape=OTHERS["hadamard"], far="projected")),
        Case(
            "far apart/4 blocks",
            partial(make_call, rows=20, shape=OTHERS["hadamard"], far="cache"),
            skip=ADJACENT,
        ),
    ]
    wide = Shape(q_rank=1536, kv_dtype="fp8_ds_mla", index_dtype="fp8", hadamard=True)
    return [
        *formats,
        *others,
        *far,
        Case("V3.2/300 rows", partial(make_call, rows=300, shape=wide), slow=True),
    ]


def make_call(
    generator: torch.Generator, device: torch.device, *, rows: int, shape: Shape, far: str = ""
) -> Call:
    """far: `projected` or `cache` lies far apart in memory."""
    dim = shape.dim if shape.index_dtype else 0
    blocks = rows // PAGE_SIZE + (4 if far else 3)
    cache = cache_of(
        shape.kv_dtype,
        blocks=blocks,
        device=device,
        latent=shape.latent,
        rope=shape.rope,
        k_scale=0.05,
        index_dtype=shape.index_dtype or "float32",
        index_dim=shape.dim if shape.index_dtype else None,
    )
    if far == "cache":
        cache = far_apart(cache)
    slots = draw_slots(generator, rows, blocks=blocks).to(device)
    width = shape.q_rank + shape.latent + shape.rope + dim + (5 if dim else 0)
    projected = randn(generator, rows, width, device=device, dtype=SOURCES[shape.source])
    if far == "projected":
        projected = rows_far_apart(rows, width, projected.dtype, device).copy_(projected)
    batch = batch_of(generator, rows, slots=slots, device=device)

    def outputs(q: Tensor) -> dict[str, Tensor]:
        found = {"q": q, **_written(cache, shape, slots)}
        return found if dim == 0 else {**found, "index": _at(stored_keys(cache), slots)}

    return Call(
        args=(projected, _norms(generator, shape, device), rotary_of(generator, shape, device), batch, cache),
        kwargs={"hadamard": shape.hadamard},
        outputs=outputs,
        tolerance=_tolerances(shape),
    )


def batch_of(
    generator: torch.Generator, rows: int, *, slots: Tensor, device: torch.device, max_length: int = 4
) -> ForwardBatch:
    """Only positions, slots and the top-k rows mean something here; too short to rank keys by default."""
    zeros = torch.zeros(rows, dtype=torch.int32, device=device)
    return ForwardBatch(
        input_ids=zeros.long(),
        positions=torch.randint(0, POSITIONS, (rows,), generator=generator).to(device),
        slot_mapping=slots,
        req_rows=zeros,
        lengths=zeros,
        block_table=torch.zeros(1, 1, dtype=torch.int32, device=device),
        topk_indices=torch.full((rows + 2, 24), 7, dtype=torch.int32, device=device),
        max_length=max_length,
    )


def rotary_of(generator: torch.Generator, shape: Shape, device: torch.device) -> Rotary:
    angles = torch.rand((POSITIONS, shape.rope // 2), generator=generator) * 6.28
    return Rotary(
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        interleaved=shape.interleaved,
        index_interleaved=shape.index_interleaved,
    )


def _norms(generator: torch.Generator, shape: Shape, device: torch.device) -> LatentNorms:
    draw = partial(randn, generator, device=device)
    return LatentNorms(
        q=1.0 + 0.3 * draw(shape.q_rank),
        kv=1.0 + 0.3 * draw(shape.latent),
        eps=1e-5,
        index_weight=1.0 + 0.3 * draw(shape.dim) if shape.index_dtype else None,
        index_bias=draw(shape.dim) if shape.index_dtype else None,
    )


def _written(cache: LayerCache, shape: Shape, slots: Tensor) -> dict[str, Tensor]:
    """What a reader sees at the live slots, and the bytes of all others."""
    if shape.kv_dtype == "fp8_ds_mla":
        tiles, scales, rope = ds_mla_views(cache.kv, shape.rope)
        latent = tiles.float() * scales.repeat_interleave(128, dim=-1)
        values = torch.cat([latent, rope.float()], dim=-1)
    else:
        values = cache.kv.float() * cache.k_scale
    return {"kv": _at(values, slots), "untouched": _elsewhere(cache.kv, slots)}


def _at(values: Tensor, slots: Tensor) -> Tensor:
    return values.flatten(0, 1)[slots[slots >= 0]]


def _elsewhere(kv: Tensor, slots: Tensor) -> Tensor:
    other = torch.ones(kv.shape[0] * PAGE_SIZE, dtype=torch.bool, device=kv.device)
    other[slots[slots >= 0]] = False
    return kv.view(torch.uint8).flatten(0, 1)[other]


def _tolerances(shape: Shape) -> dict[str, Tolerance]:
    """Sums differ in the last bit, which may move a value by one step of the format that it is stored in."""
    steps = {"float32": (1e-5, 1e-5), "bf16": (2.0**-7, 1e-3), "fp8": (2.0**-3, 1e-2)}
    source = steps[shape.source]
    stored = max(source, steps["fp8" if shape.kv_dtype.startswith("fp8") else shape.kv_dtype])
    found = {"q": close(*source), "kv": close(*stored), "untouched": Tolerance()}
    if shape.index_dtype:
        relative, absolute = max(source, steps[shape.index_dtype])
        # a rotation can leave little of two large values, and all of the step that one of them moved by
        found["index"] = close(relative, 0.04 if shape.source == "bf16" else absolute)
    return found
