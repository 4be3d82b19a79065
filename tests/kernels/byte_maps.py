"""Hand-made vectors, their bytes in the packed caches, and every op that writes them.

A row of fp8_ds_mla is 656 bytes: 512 × e4m3, 4 × float32 scale of 128 values each, 64 × bfloat16. A block of
the fp8 index cache is 64 keys of 128 × e4m3, then 64 float32 scales. Imported under the interpreter too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from paths.dsa_mrv2.kernels.arguments import LatentNorms, Rotary
from paths.dsa_mrv2.kernels.registry import FusedKernels
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.registry import Kernels
from tests.kernels.inputs import CPU, make_batch, poisoned_cache

LATENT, ROPE, INDEX_DIM, PAGE = 512, 64, 128, 64
UNTOUCHED = 0xFF


@dataclass(frozen=True)
class HandMade:
    """What is written, and the bytes that must be found."""

    c: torch.Tensor  # [512]
    k_pe: torch.Tensor  # [64]
    index_k: torch.Tensor  # [128]
    row: bytes  # 656
    key: bytes  # 128
    scale: bytes  # 4


def tiles() -> HandMade:
    """Tile 0 zero, tile 1 holds 448 and 1, tile 2 one huge outlier, tile 3 all 3.5; one key of −7."""
    c = torch.zeros(LATENT)
    c[128], c[129] = 448.0, 1.0
    c[256], c[257] = 448.0 * 1024, 1.0
    c[384:] = 3.5
    k_pe = torch.zeros(ROPE)
    k_pe[0], k_pe[1] = 1.0, 1.0 + 2.0**-7 + 2.0**-9
    index_k = torch.zeros(INDEX_DIM)
    index_k[0], index_k[127] = 0.5, -7.0
    # e4m3: sign, 4 bits of exponent with bias 7, 3 bits of mantissa
    values = bytearray(LATENT)
    values[128], values[129] = 0x7E, 0x38
    values[256], values[257] = 0x7E, 0x00  # 1 / 1024 is below half the smallest step
    values[384:] = bytes([0x7E]) * 128
    scales = struct.pack("<4f", 2.0**-22, 1.0, 1024.0, 2.0**-7)
    rope = bytes([0x80, 0x3F, 0x81, 0x3F]) + bytes(124)  # bfloat16, to nearest even
    key = bytearray(INDEX_DIM)
    key[0], key[127] = 0x60, 0xFE  # 0.5 / 2^-6 = 32, −7 / 2^-6 = −448
    return HandMade(c, k_pe, index_k, bytes(values) + scales + rope, bytes(key), struct.pack("<f", 2.0**-6))


def rounding() -> HandMade:
    """Ties to even in e4m3 and bfloat16, a scale just above a power of two, negative zero, the last bytes."""
    c = torch.zeros(LATENT)
    c[0], c[1], c[2] = 448.0, 17.0, 19.0  # steps of 2 from 16 up: 17 → 16, 19 → 20
    c[127] = -0.0
    c[128] = 449.0  # the scale of this tile is 2
    c[511] = -448.0
    k_pe = torch.zeros(ROPE)
    k_pe[62], k_pe[63] = 1.0 + 2.0**-8, -(1.0 + 3 * 2.0**-8)  # ties: down to 1, up to 1 + 2^-6
    index_k = torch.zeros(INDEX_DIM)
    index_k[1], index_k[64] = 448.0, 2.0**-9  # the smallest subnormal
    values = bytearray(LATENT)
    values[0], values[1], values[2], values[127] = 0x7E, 0x58, 0x5A, 0x80
    values[128] = 0x76  # 224.5 → 224
    values[511] = 0xFE
    scales = struct.pack("<4f", 1.0, 2.0, 2.0**-22, 1.0)
    rope = bytes(124) + bytes([0x80, 0x3F, 0x82, 0xBF])
    key = bytearray(INDEX_DIM)
    key[1], key[64] = 0x7E, 0x01
    return HandMade(c, k_pe, index_k, bytes(values) + scales + rope, bytes(key), struct.pack("<f", 1.0))


VECTORS = {"tiles": tiles, "rounding": rounding}
WRITERS = ("shared", "fused")


def assert_bytes(writer: str, kernels: Kernels, vector: str) -> None:
    """Rows over a page boundary and one more page, on shuffled blocks, with padding that writes nothing."""
    batch, blocks = make_batch([(62, 67), (0, 1)], k=8, padding=3)
    cache = poisoned_cache(blocks, "fp8_ds_mla", "fp8")
    made = VECTORS[vector]()
    {"shared": _write_shared, "fused": _write_fused}[writer](kernels, made, batch, cache)
    live = batch.slot_mapping[batch.slot_mapping >= 0].tolist()
    assert len(live) == 6
    rows = {slot * len(made.row): made.row for slot in live}
    _assert_memory(cache.kv, rows)
    block_bytes = PAGE * (INDEX_DIM + 4)
    keys = {slot // PAGE * block_bytes + slot % PAGE * INDEX_DIM: made.key for slot in live}
    scales = {slot // PAGE * block_bytes + PAGE * INDEX_DIM + slot % PAGE * 4: made.scale for slot in live}
    _assert_memory(cache.index, keys | scales)


def _write_shared(kernels: Kernels, made: HandMade, batch: ForwardBatch, cache: LayerCache) -> None:
    rows = batch.num_tokens
    c, k_pe = made.c.expand(rows, -1).contiguous(), made.k_pe.expand(rows, -1).contiguous()
    kernels.mla_cache_write(c, k_pe, batch.slot_mapping, cache)
    index_k = made.index_k.expand(rows, -1).contiguous()
    kernels.index_k_write(index_k, batch.slot_mapping, cache, hadamard=False)


def _write_fused(kernels: Kernels, made: HandMade, batch: ForwardBatch, cache: LayerCache) -> None:
    """Rows of ones have RMS 1, so the norm's output is its weight; a LayerNorm of weight 0 is its bias."""
    rows, q_rank = batch.num_tokens, 128
    ones = torch.ones(rows, q_rank + LATENT)
    any_key = torch.randn(rows, INDEX_DIM, generator=torch.Generator().manual_seed(1))
    projected = torch.cat([ones, made.k_pe.expand(rows, -1), any_key], dim=1)
    norms = LatentNorms(
        q=torch.ones(q_rank),
        kv=made.c,
        eps=0.0,
        index_weight=torch.zeros(INDEX_DIM),
        index_bias=made.index_k,
    )
    rotary = Rotary(  # angle 0
        cos=torch.ones(256, ROPE // 2),
        sin=torch.zeros(256, ROPE // 2),
        interleaved=True,
        index_interleaved=False,
    )
    fused = FusedKernels(kernels)
    shared = kernels.implementations["mla_cache_write"]
    wanted = {"triton": "triton", "cpp": "cpp"}.get(shared, "composed")
    assert fused.implementations["fused_norm_rope"] == wanted
    fused.fused_norm_rope(projected, norms, rotary, batch, cache, hadamard=False)


def _assert_memory(tensor: torch.Tensor, written: Mapping[int, bytes]) -> None:
    """Exactly `written` (offset → bytes) was changed."""
    found = bytes(tensor.view(torch.uint8).flatten().tolist())
    expected = bytearray([UNTOUCHED]) * len(found)
    for offset, content in written.items():
        expected[offset : offset + len(content)] = content
    wrong = [at for at, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    assert not wrong, f"byte {wrong[0]} is {found[wrong[0]]:#x}, expected {expected[wrong[0]]:#x}"


def assert_all_bytes(implementation: str) -> None:
    """Every writer and vector on one implementation."""
    for writer in WRITERS:
        for vector in VECTORS:
            assert_bytes(writer, Kernels(CPU, implementation), vector)
