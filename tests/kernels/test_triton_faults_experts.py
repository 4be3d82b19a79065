"""Routing, sorting and experts: every deliberate fault in a kernel fails the check that the kernel passes."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes, quick_ones

pytest.importorskip("triton")

# op → (what, old, new in its kernel's source, part of the names of the check cases that are tried)
FAULTS = {
    "moe_route": [
        (
            "ties to the higher id",
            "tl.min(tl.min(tl.where(key == best, expert, EXPERTS)",
            "tl.max(tl.max(tl.where(key == best, expert, -1)",
            "ties/no groups",
        ),
        (
            "group ties to the later one",
            "tl.reshape(group, (1, GROUPS_WIDTH)) <",
            "tl.reshape(group, (1, GROUPS_WIDTH)) >",
            "ties/equal",
        ),
        ("masked with 0", 'float("-inf"), tl.float32)', "0.0, tl.float32)", "bias/"),
        ("groups scored by their best", "order_key(top + value)", "order_key(top)", "odd groups"),
        (
            "bias in the weights",
            "tl.where(hit & real, scores, 0.0)",
            "tl.where(hit & real, biased, 0.0)",
            "bias/",
        ),
        ("no scaling", "picked * scaling", "picked", "odd groups"),
        ("no floor under the sum", "tl.maximum(tl.sum(picked), weight_floor)", "tl.sum(picked)", "extreme"),
        ("one split only", "tl.static_range(SPLITS)", "tl.static_range(1)", "split width"),
        ("always normed", "    if NORM:", "    if CHOSEN > 0:", "odd groups"),
    ],
    "moe_sort": [
        ("ranks from 1", "tl.cumsum(mine.to(tl.int32), 0) - 1", "tl.cumsum(mine.to(tl.int32), 0)", "uniform"),
        ("tiles not padded", "+ TILE - 1) // TILE\n    first", ") // TILE\n    first", "uniform"),
        ("padding not marked", "padding < end * TILE", "padding < seen", "uniform"),
        ("blocks forget those before", "seen + rank", "rank", "long"),
        ("left-over tiles keep their memory", "mask=tile < capacity", "mask=tile < first", "padding"),
    ],
    "moe_experts": [
        (
            "gate and up exchanged",
            "gate_acc * tl.sigmoid(gate_acc) * up_acc",
            "up_acc * tl.sigmoid(up_acc) * gate_acc",
            "float32/1 rows",
        ),
        (
            "choice for token",
            "(tl.where(live, row, 0) // CHOSEN)",
            "(tl.where(live, row, 0) // 3)",
            "float32/odd",
        ),
        ("first expert for all", "w2 + expert * (WIDTH * DEPTH)", "w2 + 0 * expert", "float32/odd"),
        ("no weights", "weight * part", "part", "float32/1 rows"),
        ("dropped depth mask", "inside = k < DEPTH - start", "inside = k >= 0", "float32/odd"),
        (
            "32-bit row offset",
            "arange(0, BLOCK_M)).to(tl.int64)",
            "arange(0, BLOCK_M))",
            "float32/3 rows far",
        ),
        ("tiles left out", "group * GROUP + within % GROUP", "group * GROUP + within % 2", "float32/63"),
    ],
    "moe_block": [
        ("no shared expert", "shared=shared,\n    )", "shared=0,\n    )", "float32/1 rows"),
        ("bias left out", "        block.bias,", "        block.bias * 0.0,", "float32/63"),
        ("no activation", "gate * tl.sigmoid(gate) * up", "gate * up", "dense/1 rows, float32"),
        ("dropped columns", "tl.program_id(1) * BLOCK +", "0 * BLOCK +", "dense/1 rows, float32"),
    ],
}


@pytest.mark.parametrize("op", quick_ones(FAULTS, "moe_sort"))
def test_faults_are_found(op):
    faults = [(op, what, old, new, "triton_impl", cases) for what, old, new, cases in FAULTS[op]]
    assert_passes(
        "from tests.kernels.faults import Fault, assert_found\n"
        f"assert_found([Fault(*fields) for fields in {faults!r}])\n"
    )
