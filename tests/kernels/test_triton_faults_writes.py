"""Cache writes, index queries, fused operations: every deliberate fault fails the check that they pass."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes, quick_ones

pytest.importorskip("triton")

# op → (what, old, new in its kernel's source, part of the names of the check cases that are tried)
FAULTS = {
    "mla_cache_write": [
        (
            "scales in the wrong order",
            "tl.store(row + tile, scale",
            "tl.store(row + (3 - tile), scale",
            "far",
        ),
        ("page boundary", "slot // PAGE, slot % PAGE", "slot // (PAGE + 1), slot % (PAGE + 1)", "fp8/63"),
        ("padding rows write", "if slot < 0:\n        return", "slot = tl.maximum(slot, 0)", "fp8/63"),
        ("32-bit slot", "tl.load(slots + token)", "tl.load(slots + token).to(tl.int32)", "far"),
        ("k_scale ignored", "tl.div_rn(values, tl.load(k_scale))", "values", "fp8/1 "),
        ("row stride ignored", "c + token * c_stride", "c + token * LATENT", "fp8/63"),
        ("one scale for all tiles", "block_amax(tiles, 1)", "block_amax(tiles, 1) * 0 + 1.0", "far"),
    ],
    "index_k_write": [
        (
            "scale of the neighbour",
            "scale_block_stride + offset, scale",
            "scale_block_stride + offset // 2, scale",
            "fp8/63",
        ),
        (
            "page boundary",
            "slot // PAGE,\n        slot % PAGE",
            "slot // (PAGE + 1),\n        slot % (PAGE + 1)",
            "bf16/63",
        ),
        ("padding rows write", "if slot < 0:\n        return", "slot = tl.maximum(slot, 0)", "bf16/63"),
        ("32-bit slot", "tl.load(slots + token)", "tl.load(slots + token).to(tl.int32)", "far"),
        ("no rotation", "    if HADAMARD:", "    if HADAMARD and WIDTH < 32:", "bf16/5 rows of 32"),
        (
            "amax shifted",
            "ue8m0_scale(block_amax(values, 0))",
            "ue8m0_scale(block_amax(values, 0) + 1e-3)",
            "fp8/63",
        ),
    ],
    "index_q_prepare": [
        ("scale left out of the weight", "folded *= scale", "folded *= 1.0", "fp8/1 "),
        ("row stride ignored", "q + token * q_token_stride", "q + token * HEADS * DIM", "bf16/63"),
        ("32-bit row offset", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", "far"),
        ("constants left out", ".to(tl.float32) * fold", ".to(tl.float32)", "bf16/1 "),
        ("no rotation", "    if HADAMARD:", "    if HADAMARD and WIDTH < 32:", "bf16/5 rows, 16"),
    ],
    "fused_norm_rope": [
        (
            "layouts exchanged",
            "INTERLEAVED)\n    mine = tl.load",
            "not INTERLEAVED)\n    mine = tl.load",
            "narrow",
        ),
        (
            "index key in the latent's layout",
            "DIM_WIDTH,\n                    INDEX_INTERLEAVED,",
            "DIM_WIDTH,\n                    INTERLEAVED,",
            "narrow",
        ),
        ("no LayerNorm bias", "centred * inverse * g + b", "centred * inverse * g", "narrow"),
        ("partner not normed", "(x - mean) * inverse * g + b", "x", "narrow"),
        ("mean over the lanes", "tl.sum(x) / DIM", "tl.sum(x) / WIDTH", "odd widths"),
        ("query's RoPE key", "row + Q + LATENT, cos", "row + Q, cos", "narrow"),
        ("row number for position", "tl.load(positions + token)", "token", "narrow"),
        ("padding rows write", "if slot < 0:\n            return", "slot = tl.maximum(slot, 0)", "narrow/7"),
        ("32-bit slot", "tl.load(slots + token)", "tl.load(slots + token).to(tl.int32)", "4 blocks"),
        ("32-bit row offset", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", "far apart/4 rows"),
    ],
    "fused_q": [
        ("layouts exchanged", "ROPE, INTERLEAVED)\n    mask", "ROPE, not INTERLEAVED)\n    mask", "narrow"),
        ("rope ahead of nope", "part = row + NOPE", "part = row", "narrow"),
        (
            "packed over the latent",
            "(LATENT + ROPE) + LATENT + rope_lane",
            "(LATENT + ROPE) + rope_lane",
            "narrow",
        ),
        (
            "index rotation at the end",
            "(lane < ROPE)[None, :], rounded, plain",
            "(lane >= ROPE)[None, :], rounded, plain",
            "narrow",
        ),
        ("32-bit row offset", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", "far"),
        ("row number for position", "tl.load(positions + token)", "token", "narrow"),
    ],
}


@pytest.mark.parametrize("op", quick_ones(FAULTS, "index_k_write"))
def test_faults_are_found(op):
    faults = [(op, what, old, new, "triton_impl", cases) for what, old, new, cases in FAULTS[op]]
    assert_passes(
        "from tests.kernels.faults import Fault, assert_found\n"
        f"assert_found([Fault(*fields) for fields in {faults!r}])\n"
    )
