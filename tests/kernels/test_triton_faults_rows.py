"""Norms, RoPE and embedding: each deliberate fault in a kernel fails the check that the kernel passes."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes, quick_ones

pytest.importorskip("triton")

# op → (what, old, new) in its kernel's source
FAULTS = {
    "rms_norm": [
        ("32-bit row offset", "row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)"),
        ("mean over the block", "/ width\n", "/ values.shape[0]\n"),
        ("dropped load mask", "mask=inside, other=0.0).to(tl.float32)", "mask=lane >= 0).to(tl.float32)"),
        ("dropped store mask", "element_ty), mask=inside)", "element_ty))"),
        ("no epsilon", "mean + eps", "mean"),
        ("weight ahead of the norm", "values * scale * tl.load", "(values + 0 * scale) * tl.load"),
        ("row stride ignored", "row * stride", "row * width"),
    ],
    "add_rms_norm": [
        ("norm of x alone", "values += tl.load(residual", "values += 0 * tl.load(residual"),
        ("residual stride of x", "row * residual_stride", "row * x_stride"),
        ("32-bit row offset", "row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)"),
        (
            "truncated residual",
            "cast_to(values, total.dtype.element_ty)",
            "values.to(total.dtype.element_ty)",
        ),
    ],
    "rope": [
        ("row number for position", "tl.load(positions + token)", "token"),
        ("sine with the wrong sign", "first * s + second * c", "second * c - first * s"),
        ("layouts exchanged", "    if INTERLEAVED:", "    if not INTERLEAVED:"),
        ("heads past the last", "(head < heads)[:, None] & ", ""),
        ("32-bit token offset", "token = tl.program_id(0).to(tl.int64)", "token = tl.program_id(0)"),
        ("dropped half mask", "(lane < 2 * HALF)", "(lane < 2 * BLOCK_HALF)"),
    ],
    "embed_norm": [
        ("neighbouring row", "tl.load(ids + row)", "(tl.load(ids + row) ^ 1)"),
        ("row stride ignored", "* stride", "* width"),
        ("32-bit table offset", "tl.load(ids + row).to(tl.int64)", "tl.load(ids + row).to(tl.int32)"),
    ],
}


@pytest.mark.parametrize("op", quick_ones(FAULTS, "rms_norm"))
def test_faults_are_found(op):
    faults = [(op, *fault) for fault in FAULTS[op]]
    assert_passes(
        "from tests.kernels.faults import Fault, assert_found\n"
        f"assert_found([Fault(*fields) for fields in {faults!r}])\n"
    )
