"""Sampling, rejection, input preparation: each deliberate fault in a kernel fails its op's check."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes, quick_ones

pytest.importorskip("triton")

# op → (what, old, new) in its kernels' source
FAULTS = {
    "sample": [
        ("every tie kept", "(ids <= last_tie)", "(ids >= 0)"),
        ("ties above the last id", "(ids <= last_tie)", "(ids >= last_tie)"),
        ("NaN not masked", 'x = tl.where(x == x, x, float("-inf"))', "x = x * 1.0"),
        ("-0 below 0", "return tl.where(x == 0.0, 0.0, x)", "return x"),
        ("logits past the vocabulary", 'mask=inside, other=float("-inf")', "mask=ids >= 0"),
        ("parameters of the wrong entry", "entry = tl.load(rows + row).to(tl.int64)", "entry = row"),
        (
            "noise without the position",
            "stepped = position.to(tl.uint64, bitcast=True)",
            "stepped = 0 * seed.to(tl.uint64)",
        ),
        ("32-bit row offset", "row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)"),
        ("one token too many", "limited = (k > 0)", "k += (k > 0).to(tl.int32)\n    limited = (k > 0)"),
        ("top-p of all tokens", "if limited:\n                total", "if vocab < 0:\n                total"),
        ("temperature ignored", "x = tl.div_rn(x, temperature)", "x = tl.div_rn(x, temperature * 0 + 1.0)"),
    ],
    "rejection": [
        ("accepts at u = p / q = 0", "(u < ratio)", "(u <= ratio)"),
        ("accepts what q cannot draw", "possible = is_token & (q > 0.0)", "possible = is_token & (q >= 0.0)"),
        ("draws from p after a rejection", "more, p - q, 1.0", "more, p, 1.0"),
        ("draws the rejected one-hot draft", 'tl.where(ids == draft, float("-inf"), plain)', "plain"),
        ("32-bit row offset", "row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)"),
        ("bonus row treated as a draft", " & (row < end_row - 1)", ""),
        ("no fallback to p", 'tl.max(values, axis=0) > float("-inf")', "tl.max(values, axis=0) < 1e30"),
        (
            "mass of all tokens",
            "tl.where(kept, fixed_mass(x, largest), 0)",
            "tl.where(ids < vocab, fixed_mass(x, largest), 0)",
        ),
        ("q of the first draft", "(row - first) * draft_stride", "0 * draft_stride"),
    ],
    "prepare_inputs": [
        (
            "stale slots behind the live ones",
            "tl.where(live, block * PAGE + position % PAGE, -1)",
            "block * PAGE + position % PAGE",
        ),
        (
            "32-bit row offset",
            "row * stride + column, mask=column < width)",
            "row.to(tl.int32) * stride + column, mask=column < width)",
        ),
        ("page boundary", "position // PAGE", "(position + 1) // PAGE"),
        ("length without the token itself", "tl.where(live, position + 1, 0)", "tl.where(live, position, 0)"),
        ("draft over a known token", "(position < known)", "(position < known - 1)"),
        ("rejected drafts count as computed", " - (wanted - count)", ""),
        (
            "token of the next row",
            "low = tl.where(right, middle + 1, low)",
            "low = tl.where(right, middle, low)",
        ),
        ("draft behind the last row", "live & (entry < last - 1)", "live & (entry < last)"),
        ("block table of padding rows", "readable = tl.where(slot >= 0, width, 0)", "readable = width"),
    ],
    "prepare_drafts": [
        ("rejected drafts stay", " - tl.where(wanted > 0, wanted - got, 0)", ""),
        ("the token itself", "mask=live, other=-1) + 1", "mask=live, other=-1)"),
        (
            "rows of nobody keep their slot",
            "mask=is_token & (live == 0))\n    is_row",
            "mask=owned)\n    is_row",
        ),
        ("a draft at the limit", "(position < tl.load(limits", "(position <= tl.load(limits"),
        ("page of another request", "b.to(tl.int64) * table_stride", "0 * table_stride"),
        (
            "an id of nobody",
            "tl.load(tokens + b, mask=drafts, other=0)",
            "tl.load(tokens + b, mask=inside, other=0)",
        ),
    ],
    "select_all": [
        ("one key too many", "column < tl.load(lengths_ptr + t)", "column <= tl.load(lengths_ptr + t)"),
        ("dropped store mask", "selected, mask=column < k)", "selected)"),
        ("32-bit row offset", "t = tl.program_id(0).to(tl.int64)", "t = tl.program_id(0)"),
    ],
    "count_nan_rows": [
        ("values behind the row", "mask=start + lane < width, other=0.0)", "mask=lane >= 0)"),
        ("last block only", "bad |= (x", "bad = (x"),
        ("infinities count", "bad |= (x != x)", "bad |= (x - x != 0.0)"),
        ("32-bit row offset", "tl.program_id(0).to(tl.int64) * stride", "tl.program_id(0) * stride"),
    ],
    "apply_writes": [
        ("padding writes", "tl.where(to >= 0, tl.load(write + 2), 0)", "tl.load(write + 2)"),
        ("longest write for all", "live = word < count", "live = word >= 0"),
        ("first block only", "tl.program_id(1) * BLOCK + tl.arange", "tl.arange"),
        ("values from the start", "values_ptr + first + word", "values_ptr + word"),
    ],
    "mask_tokens": [
        ("padding rows write", "(row >= 0) & (token >= 0)", "token >= 0"),
        ("padding tokens write", "(row >= 0) & (token >= 0)", "row >= 0"),
        ("32-bit row offset", "row.to(tl.int64) * stride", "row * stride"),
    ],
}


@pytest.mark.parametrize("op", quick_ones(FAULTS, "mask_tokens"))
def test_faults_are_found(op):
    planted = [(op, *fault) for fault in FAULTS[op]]
    assert_passes(
        "from tests.kernels.faults import Fault, assert_found\n"
        f"assert_found([Fault(*fields) for fields in {planted!r}])\n"
    )
