"""Scores, selection and attention: each deliberate fault fails the check that the kernel passes."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes, quick_ones

pytest.importorskip("triton")

GUARD = 'tl.where(new_highest == float("-inf"), 0.0, new_highest)'
RELU = "tl.where((products > 0.0) | (products != products), products, 0.0)"

# op → (what, old, new) in its kernel's source, and the check cases that have to find it
FAULTS = {
    "sparse_mla": [
        ("scale of the neighbouring tile", "+ tile[None, :]", "+ (tile ^ 1)[None, :]", "fp8_ds_mla/1 rows"),
        ("page boundary", "table + index // PAGE", "table + index // (PAGE + 1)", "bf16/blocks"),
        (
            "unused entries join in",
            'tl.where(valid[None, :], logits, float("-inf"))',
            "logits",
            "bf16/63 rows",
        ),
        ("-1 is a position", "valid = index >= 0", "valid = index >= -1", "bf16/63 rows"),
        (
            "NaN of an unused key",
            "(c < C)[None, :], other=0.0)\n    if FORMAT",
            '(c < C)[None, :], other=float("nan"))\n    if FORMAT',
            "bf16/1 rows",
        ),
        ("no guard for an empty row", GUARD, "new_highest", "gap before"),
        (
            "no guard for empty splits",
            'tl.where(highest == float("-inf"), 0.0, highest)',
            "highest",
            "bf16/17",
        ),
        (
            "32-bit block offset",
            "other=0).to(tl.int64)\n        offset",
            "other=0)\n        offset",
            "bf16/blocks",
        ),
        (
            "32-bit query offset",
            "t = tl.program_id(0).to(tl.int64)\n    split",
            "t = tl.program_id(0)\n    split",
            "bf16/blocks",
        ),
        ("values without k_scale", "(k_scale / safe)", "(1.0 / safe)", "fp8/1 rows"),
        ("query not quantized", "e4m3_to_f32(to_e4m3(q.to(tl.float32)))", "q.to(tl.float32)", "fp8/C 32"),
        ("entries behind a gap dropped", "all_columns + 1, 0), axis=0)", "1, 0), axis=0)", "bf16/1 rows"),
    ],
    "topk": [
        (
            "ties from the end",
            "(tie_rank < ties_left)",
            "(tie_rank >= tl.sum(equal, 0) - ties_left)",
            "by index/63",
        ),
        ("one tie too few", "(tie_rank < ties_left)", "(tie_rank < ties_left - 1)", "by index/63"),
        ("negative scores in reverse", "bits ^ 0x7FFFFFFF, bits)", "bits, bits)", "by index/63"),
        ("NaN wins", 'tl.where(score != score, float("-inf"), score)', "score", "by index/63"),
        ("-0 below 0", "tl.where(score == 0.0, 0.0, score)", "score", "by index/63"),
        ("reads behind the length", "live = column < length\n", "live = column < length + 4\n", "4000"),
        (
            "compares 16 bits",
            "(live & (key > threshold))",
            "(live & ((key >> 16) > (threshold >> 16)))",
            "4000",
        ),
        ("32-bit row offset", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", "by index/63"),
    ],
    "mqa_logits": [
        ("no ReLU", RELU, "products", "paged fp8/1 row"),
        (
            "ReLU behind the weight",
            f"{RELU} * weights[None, :]",
            "tl.maximum(products * weights[None, :], 0.0)",
            "paged fp8/1 row",
        ),
        (
            "page boundary",
            "table_stride + column // PAGE",
            "table_stride + column // (PAGE + 1)",
            "paged fp8/blocks",
        ),
        ("scale of block 0", "block * scale_block_stride", "0 * scale_block_stride", "paged fp8/1 row"),
        (
            "rows of the next request",
            "tl.where(same & inside, BLOCK_T, near)",
            "BLOCK_T",
            "paged bf16/decode",
        ),
        ("32-bit block offset", "other=0).to(tl.int64)\n", "other=0)\n", "paged fp8/blocks"),
        (
            "32-bit query offset",
            "(first + lane // BLOCK_H).to(tl.int64)",
            "(first + lane // BLOCK_H)",
            "paged fp8/blocks",
        ),
        ("heads behind the last", "live = (t < stop) & (h < heads)", "live = t < stop", "20 heads"),
    ],
    "index_topk": [
        ("rows of k + 1 keys not scored", "at_least=k,", "at_least=k + 1,", "decode"),
        (
            "lengths of other rows",
            "topk(logits, lengths[rows]",
            "topk(logits, lengths.roll(1)[rows]",
            "decode",
        ),
        (
            "short rows as they were",
            "    if batch.max_length <= k:\n",
            "    if batch.max_length <= k:\n        return\n",
            "no row",
        ),
    ],
    "index_to_slot": [
        ("page boundary", "index // PAGE", "index // (PAGE + 1)", ""),
        ("32-bit slots", "other=0).to(tl.int64)", "other=0)", ""),
        (
            "slot 0 for an unused entry",
            "tl.where(used, block * PAGE + index % PAGE, -1)",
            "tl.where(used, block * PAGE + index % PAGE, 0)",
            "",
        ),
        ("row by number of the token", "tl.load(req_rows_ptr + t)", "(tl.load(req_rows_ptr + t) * 0)", ""),
    ],
    "dense_mha": [
        ("sees the next key", "m[:, None] + shift)", "m[:, None] + shift + 1)", "bf16/65"),
        ("queries from the first position", "shift = keys - queries", "shift = 0", "bf16/65"),
        ("keys behind the last", "inside = n < keys", "inside = n < keys + 1", "bf16/more"),
        ("no guard for an empty row", GUARD, "new_highest", "bf16/more"),
        ("32-bit row offset", "rows = (first_query + m).to(tl.int64)", "rows = first_query + m", "apart"),
        ("32-bit key offset", "columns = (first_key + n).to(tl.int64)", "columns = first_key + n", "apart"),
        (
            "rest of the key width dropped",
            "logits = dot(q_tail, tl.trans(k_tail), logits)",
            "logits = logits",
            "bf16/65",
        ),
    ],
}


@pytest.mark.parametrize("op", quick_ones(FAULTS, "mqa_logits"))
def test_faults_are_found(op):
    faults = [(op, what, old, new, "triton_impl", cases) for what, old, new, cases in FAULTS[op]]
    assert_passes(
        "from tests.kernels.faults import Fault, assert_found\n"
        f"assert_found([Fault(*fields) for fields in {faults!r}])\n"
    )
