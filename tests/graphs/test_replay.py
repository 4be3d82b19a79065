"""Replays of whole models: the bits of eager code at the same padded size, and the graphs' structure."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from paths.graphs.config import GraphConfig, GraphMode
from tests.graphs.conftest import dsa_model
from tests.graphs.driver import (
    FULL_AND_PIECEWISE,
    FULL_ONLY,
    PIECEWISE_ONLY,
    GraphDriver,
    replays_equal_eager,
)

DTYPES = {
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
    "fp8_ds_mla": torch.bfloat16,
}


def test_four_layers_have_four_breaks_and_five_segments(model):
    driver = GraphDriver(model, FULL_AND_PIECEWISE)
    graphs = driver.forward._graphs.values()
    counts = {(g.descriptor.mode, g.breaks, g.segments) for g in graphs}
    assert counts == {(GraphMode.PIECEWISE, 4, 5), (GraphMode.FULL, 0, 1)}
    report = driver.forward.captured
    assert report.graphs == len(graphs) == 12  # three sizes of each mode, ranked and not
    assert report.breaks == 4
    assert report.seconds > 0
    assert report.memory_bytes >= sum(b.nbytes for g in graphs for b in g.replay.buffers) > 0


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_replay_equals_eager(kv_dtype):
    model = dsa_model(dtype=DTYPES[kv_dtype], hadamard=kv_dtype.startswith("fp8"))
    steps = replays_equal_eager(model, FULL_AND_PIECEWISE, steps=60, kv_dtype=kv_dtype)
    assert steps["NONE"] == 0
    assert steps["FULL"] > 10
    assert steps["PIECEWISE"] > 10


@pytest.mark.parametrize("kernels", ["cpp", "torch"])
@pytest.mark.parametrize("graphs", [FULL_ONLY, PIECEWISE_ONLY], ids=["full", "piecewise"])
def test_one_mode_alone(small_model, graphs, kernels):
    model = small_model if kernels == "cpp" else dsa_model(num_hidden_layers=2, kernels="torch")
    steps = replays_equal_eager(model, graphs, steps=30, seed=3)
    if graphs is FULL_ONLY:
        assert steps["FULL"] > 3
        assert steps["NONE"] > 3  # what is not a uniform decode
        assert steps["PIECEWISE"] == 0
    else:
        assert steps == {"NONE": 0, "PIECEWISE": 30, "FULL": 0}


def test_three_sizes_replayed_in_every_order(small_model):
    """Captured largest first; a graph whose memory a later capture reused would read that one's data."""
    sizes = {8: {0: [11] * 3, 1: [13] * 4}, 16: {0: [17] * 15}, 64: {0: [19] * 30, 2: [23] * 31}}
    driver, eager = (GraphDriver(small_model, graphs) for graphs in (PIECEWISE_ONLY, GraphConfig()))
    for order in permutations(sizes):
        for size in order:
            for seq in range(4):
                driver.release(seq)
                eager.release(seq)
            descriptor = driver.descriptor(sizes[size])
            assert descriptor.num_tokens == size
            replayed = driver.step(sizes[size])[0]
            assert torch.equal(replayed, eager.eager_step(sizes[size], descriptor)), order


@pytest.mark.parametrize("query_len", [2, 4])
def test_several_rows_per_request_in_a_full_graph(small_model, query_len):
    """Rows are requests × query length, as with drafted tokens."""
    graphs = GraphConfig(decode=GraphMode.FULL, full_sizes=(1, 2, 4), query_lens=(query_len,))
    driver, eager = (GraphDriver(small_model, config) for config in (graphs, GraphConfig()))
    for seq in range(3):
        work = {seq: list(range(5, 60 + seq))}
        driver.step(work)
        eager.eager_step(work)
    for step in range(6):
        work = {seq: [7 + step] * query_len for seq in range(3)}
        size = driver.descriptor(work)
        assert (size.mode, size.num_reqs, size.num_tokens) == (GraphMode.FULL, 4, 4 * query_len)
        hidden, mode = driver.step(work)
        assert mode is GraphMode.FULL
        assert torch.equal(hidden, eager.eager_step(work, size))
    assert driver.same_caches(eager)


def test_kernel_calls_advance_as_in_eager_code(small_model):
    """The counters are the proof of what ran."""

    def calls(run):
        before = {op: dict(counts) for op, counts in small_model._kernels.calls.items()}
        run()
        after = small_model._kernels.calls
        return {
            op: after[op][name] - count
            for op, counts in before.items()
            for name, count in counts.items()
            if after[op][name] != count
        }

    driver, eager = (GraphDriver(small_model, graphs) for graphs in (FULL_AND_PIECEWISE, GraphConfig()))
    for work in ({0: [5] * 63}, {0: [6]}, {0: [7]}, {0: [8]}):
        assert calls(lambda work=work: driver.step(work)) == calls(lambda work=work: eager.step(work))
    assert driver.forward.counts.steps == {"NONE": 0, "PIECEWISE": 1, "FULL": 3}


def test_debug_mode_changes_no_bit(model):
    graphs = GraphConfig(
        decode=GraphMode.FULL,
        mixed=GraphMode.PIECEWISE,
        full_sizes=(4,),
        piecewise_sizes=(64,),
        debug=True,
    )
    steps = replays_equal_eager(model, graphs, steps=40, seed=5)
    assert steps["NONE"] == 0
