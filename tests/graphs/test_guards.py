"""Each way in which a graph silently computes something else, and the guard against it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from paths.api import UserError
from paths.dsa_mrv2.model import DsaModel
from paths.engine.context import ForwardContext
from paths.graphs.breakable import BreakableCapture, break_output, break_point, running_capture
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.recorded import RecordedBackend
from tests.graphs.conftest import dsa_model
from tests.graphs.driver import FULL_AND_PIECEWISE, PIECEWISE_ONLY, VOCAB, GraphDriver

DEBUG = replace(FULL_AND_PIECEWISE, debug=True)


def changed_slots(driver, before):
    """(layer, slot) of every key that differs from `before`."""
    return {
        (layer, int(slot))
        for layer, (cache, old) in enumerate(zip(driver.caches, before, strict=True))
        for slot in (cache.kv.view(torch.uint8) != old).flatten(2).any(-1).flatten().nonzero()
    }


def cache_bytes(driver):
    return [cache.kv.view(torch.uint8).clone() for cache in driver.caches]


def test_static_inputs_cannot_be_rebound(small_model):
    driver = GraphDriver(small_model, DEBUG)
    with pytest.raises(AttributeError, match="positions: static inputs are written in place"):
        driver.inputs.positions = torch.zeros(64, dtype=torch.int64)
    driver.step({0: [5]})
    driver.inputs.__dict__["positions"] = driver.inputs.positions.clone()
    with pytest.raises(RuntimeError, match="static buffers positions have moved"):
        driver.step({0: [6]})


def test_a_replay_reads_this_steps_inputs(small_model):
    """And what is left of a larger step does not count: rows 1 and 2 of the second step are padding."""
    driver, eager = (GraphDriver(small_model, graphs) for graphs in (FULL_AND_PIECEWISE, GraphConfig()))
    for work in ({0: [5] * 9, 1: [4] * 9, 2: [3] * 9}, {0: [5], 1: [6], 2: [7]}, {0: [6]}, {0: [7]}):
        size = driver.descriptor(work)
        assert torch.equal(driver.step(work)[0], eager.eager_step(work, size))
    work = {seq: [9] for seq in range(3)}
    driver.step(work)
    driver.step({0: [9], 1: [9]})
    driver.inputs.slot_mapping[2:4] = 77  # as a larger step leaves them
    driver.inputs.lengths[2:4] = 77
    assert driver.step(work)[1] is GraphMode.FULL
    assert driver.inputs.slot_mapping[3] == -1
    assert driver.inputs.lengths[3] == 0


@pytest.mark.parametrize("graphs", [FULL_AND_PIECEWISE, PIECEWISE_ONLY], ids=["full", "piecewise"])
def test_padding_rows_write_no_key(small_model, graphs):
    """Not where the previous step wrote, not in the null block, not at the end of the cache (slot −1)."""
    driver = GraphDriver(small_model, graphs)
    driver.step({seq: [seq + 5] for seq in range(3)})
    driver.step({seq: [seq + 6] for seq in range(4)})
    for cache in driver.caches:
        cache.kv.view(torch.uint8).fill_(0xFF)
    for seq in range(4):
        driver.release(seq)
    before = cache_bytes(driver)
    work = {0: [9], 1: [10], 3: [11]}
    shape = replace(driver.fill(work), query_len=1)  # one token each, as in a decode
    written = set(driver.inputs.slot_mapping[:3].tolist())
    hidden, mode = driver.forward.run(shape)
    assert mode is (GraphMode.FULL if graphs is FULL_AND_PIECEWISE else GraphMode.PIECEWISE)
    assert hidden.isfinite().all()
    assert changed_slots(driver, before) == {(layer, slot) for layer in range(2) for slot in written}


def test_a_capture_writes_no_key(small_model):
    """Even when the static inputs hold a live step."""
    driver = GraphDriver(small_model, FULL_AND_PIECEWISE, capture=False)
    driver.fill({seq: list(range(16)) for seq in range(4)})
    before = cache_bytes(driver)
    driver.forward.capture()
    assert changed_slots(driver, before) == set()


def test_output_read_after_the_next_step_is_nan_in_debug_mode(small_model):
    driver = GraphDriver(small_model, DEBUG)
    first, _ = driver.forward.run(driver.fill({0: [5, 6, 7]}))
    kept = first.clone()
    assert kept.isfinite().all()
    driver.forward.run(driver.fill({0: [8, 9, 10]}))
    assert first.isnan().all()


def test_outputs_stand_in_one_buffer_that_no_graph_owns(small_model):
    """A later capture or replay may use a graph's memory again, and must not reach its output."""
    driver = GraphDriver(small_model, FULL_AND_PIECEWISE)
    addresses = {
        driver.forward.run(replace(driver.fill(work), query_len=query_len))[0].data_ptr()
        for work, query_len in (({0: [5] * 7}, None), ({0: [5] * 60}, None), ({0: [5], 1: [6]}, 1))
    }
    assert len(addresses) == 1
    owned = {b.data_ptr() for g in driver.forward._graphs.values() for b in g.replay.buffers}
    assert not addresses & owned


def test_the_decision_to_rank_keys_is_part_of_the_key(model):
    """index_topk is 64: a graph that was captured for short contexts has no index queries."""
    driver, eager = (GraphDriver(model, graphs) for graphs in (PIECEWISE_ONLY, GraphConfig()))
    for chunk in (60, 3, 1, 1, 1, 40, 60, 1):
        work = {0: [chunk + 5] * chunk}
        size = driver.descriptor(work)
        assert size.sparse is (driver.sequences.lengths[0] + chunk > 64)
        assert torch.equal(driver.step(work)[0], eager.eager_step(work, size))
    driver.release(0)
    eager.release(0)
    work = {0: [5] * 8}
    assert not driver.descriptor(work).sparse
    assert torch.equal(driver.step(work)[0], eager.eager_step(work, driver.descriptor(work)))


def test_captures_do_not_nest():
    backend = RecordedBackend()
    with (
        BreakableCapture(backend.recording(), inline=False),
        pytest.raises(RuntimeError, match="captures do not nest"),
        BreakableCapture(backend.recording(), inline=False),
    ):
        pass
    assert running_capture() is None


def test_an_exception_leaves_no_capture_open(small_model):
    driver = GraphDriver(small_model, PIECEWISE_ONLY, capture=False)
    kernels = small_model._kernels

    def fail(*args, **kwargs):
        if running_capture() is not None:
            raise ValueError("in a segment")
        return original(*args, **kwargs)

    original = small_model._feed_forward
    small_model._feed_forward = fail
    try:
        with pytest.raises(ValueError, match="in a segment"):
            driver.forward.capture()
    finally:
        del small_model._feed_forward
    assert running_capture() is None
    assert kernels.recorder is None
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert GraphDriver(small_model, PIECEWISE_ONLY).step({0: [5]})[1] is GraphMode.PIECEWISE


def test_a_batch_above_the_largest_size_runs_eagerly_and_is_counted(small_model):
    graphs = replace(FULL_AND_PIECEWISE, full_sizes=(1, 2), piecewise_sizes=(8, 16))
    driver = GraphDriver(small_model, graphs)
    eager = GraphDriver(small_model, GraphConfig())
    work = {0: [5] * 40}
    hidden, mode = driver.step(work)
    assert mode is GraphMode.NONE
    assert torch.equal(hidden, eager.step(work)[0])
    assert driver.forward.counts.misses == {"PIECEWISE: num_tokens above the largest size 16": 1}
    for seq in (1, 2):
        driver.step({seq: [5]})
    assert driver.step({0: [6], 1: [7], 2: [8]})[1] is GraphMode.PIECEWISE
    assert driver.forward.counts.misses["FULL: num_reqs above the largest size 2"] == 1
    assert driver.forward.counts.steps == {"NONE": 1, "PIECEWISE": 3, "FULL": 0}
    assert driver.forward.counts.tokens_padded == 40 + 3 * 8


class Metadata(DsaModel):
    """Hands its cache writer something else than the batch it was given."""

    change: staticmethod

    def bind(self, batch, caches):
        batch, caches = self.change(batch, caches)
        return partial(self._captured_only, batch, caches, super().bind(*self._good))

    def context(self, batch, caches):
        self._good = (batch, caches)
        return super().context(batch, caches)

    def _captured_only(self, batch, caches, warm_up):
        return warm_up() if running_capture() is None else self._hidden(batch, caches)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda batch, caches: (replace(batch, slot_mapping=None), caches),
            "layer 0: fused_norm_rope has no slots or no cache at capture",
        ),
        (
            lambda batch, caches: (batch, [caches[0], replace(caches[1], kv=None)]),
            "fused_norm_rope has no slots or no cache at capture",
        ),
        (
            lambda batch, caches: (replace(batch, slot_mapping=batch.slot_mapping.clone()), caches),
            "layer 0: fused_norm_rope writes to slots that are not the static ones",
        ),
        (
            lambda batch, caches: (batch, [caches[0], replace(caches[1], kv=caches[1].kv.clone())]),
            "fused_norm_rope writes to a cache that is not one of the engine's",
        ),
    ],
    ids=["no slots", "no cache", "slots of the capture", "another cache"],
)
@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
def test_a_captured_cache_writer_needs_real_metadata(change, message, mode):
    model = dsa_model(model_class=type("Changed", (Metadata,), {"change": staticmethod(change)}), **TWO)
    graphs = replace(
        FULL_AND_PIECEWISE,
        decode=GraphMode[mode],
        mixed=GraphMode.NONE if mode == "FULL" else GraphMode.PIECEWISE,
    )
    with pytest.raises(RuntimeError, match=message):
        GraphDriver(model, graphs)


TWO = {"num_hidden_layers": 2}


class SharedScale:
    """Divides by the largest value of a buffer whose padding rows nobody wrote."""

    config = None
    max_model_len = 192

    def __init__(self, model, *, leaks):
        self.config, self._kernels, self._leaks = model.config, model._kernels, leaks

    def num_breaks(self):
        return 1

    def context(self, batch, caches):
        return ForwardContext(
            batch=batch, caches=caches, kernels=self._kernels, index_topk=64, hadamard=False
        )

    def bind(self, batch, caches):
        return partial(self._hidden, batch)

    def forward(self, batch, caches):
        return self._hidden(batch)

    def logits(self, hidden):
        return hidden

    def _hidden(self, batch):
        scratch = break_output(torch.empty(0), batch.num_tokens, 4)
        self._fill(scratch, batch.positions)
        scale = scratch.amax() if self._leaks else scratch.amax(dim=-1, keepdim=True)
        return scratch / scale

    @break_point(writes="scratch")
    def _fill(self, scratch, positions):
        from paths.engine.context import current_context

        live = current_context().batch.num_tokens
        scratch[:live] = positions[:live, None] + 1.0


@pytest.mark.no_poison
@pytest.mark.parametrize("leaks", [False, True])
def test_nan_in_padding_that_reaches_a_live_row_is_found(small_model, leaks):
    driver = GraphDriver(SharedScale(small_model, leaks=leaks), replace(PIECEWISE_ONLY, debug=True))
    if leaks:
        with pytest.raises(RuntimeError, match=r"live rows \[0, 1, 2\] hold NaN after a replay"):
            driver.step({0: [5, 6, 7]})
    else:
        assert (driver.step({0: [5, 6, 7]})[0] == 1).all()


class ForgottenBreak(DsaModel):
    def _sparse_attention(self, layer, *args):
        plain = DsaModel._sparse_attention
        if layer is self.layers[2]:
            plain = plain.__wrapped__
        return plain(self, layer, *args)


def test_a_layer_without_a_break_is_named():
    with pytest.raises(RuntimeError, match=r"layer 2: (index_topk|sparse_mla) was called inside a captured"):
        GraphDriver(dsa_model(model_class=ForgottenBreak), PIECEWISE_ONLY)


def test_the_number_of_breaks_is_checked(small_model):
    small_model.num_breaks = lambda: 3
    try:
        with pytest.raises(RuntimeError, match="2 breaks and 3 segments instead of 3 and 4"):
            GraphDriver(small_model, PIECEWISE_ONLY)
        small_model.num_breaks = lambda: 0
        with pytest.raises(UserError, match="neither compiled nor breakable"):
            GraphDriver(small_model, PIECEWISE_ONLY)
    finally:
        del small_model.num_breaks


def test_capture_belongs_to_start_up(small_model):
    driver = GraphDriver(small_model, PIECEWISE_ONLY)
    with pytest.raises(RuntimeError, match="captured at start-up, once"):
        driver.forward.capture()
    late = GraphDriver(small_model, PIECEWISE_ONLY, capture=False)
    assert late.step({0: [5]})[1] is GraphMode.NONE
    assert late.forward.counts.misses == {"PIECEWISE: capture was not called": 1}
    with pytest.raises(RuntimeError, match="captured at start-up, once"):
        late.forward.capture()


def test_a_model_that_cannot_be_captured_is_refused_at_once(small_model):
    class Plain:
        config = small_model.config

        def forward(self, batch, caches):
            return batch.positions[:, None].float()

    assert GraphDriver(Plain(), GraphConfig()).step({0: [5]})[1] is GraphMode.NONE
    with pytest.raises(UserError, match="Plain cannot be captured"):
        GraphDriver(Plain(), PIECEWISE_ONLY)


@pytest.mark.no_poison  # the graph would fill its buffers again
def test_what_stands_in_padding_rows_changes_no_bit(model):
    """It would decide which experts they take, and so how the live rows' products are grouped."""
    driver, results = GraphDriver(model, PIECEWISE_ONLY), []
    generator = torch.Generator().manual_seed(0)
    for fill in (
        lambda rows: rows.zero_(),
        lambda rows: rows.fill_(torch.nan),
        lambda rows: rows.normal_(generator=generator),
        lambda rows: rows.fill_(1e4),
    ):
        driver.release(0)
        work = {0: torch.randint(3, VOCAB, (37,), generator=generator.manual_seed(1)).tolist()}
        for buffer in driver.forward._graphs[driver.descriptor(work)].replay.buffers:
            with torch.inference_mode():
                fill(buffer)
        results.append(driver.step(work)[0])
    assert all(torch.equal(result, results[0]) for result in results)
