"""Replayed drafts: the bits of eager code, at 1 + k rows per request, at one, and in mixed batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paths.api import UserError
from paths.dsa_mrv2.model import DsaModel
from paths.engine.batch import padding_batch
from paths.engine.static_inputs import DraftInputs
from paths.generic_mrv1.model import GenericModel
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.shape import BatchShape
from tests.graphs.conftest import dsa_model
from tests.graphs.driver import FULL_AND_PIECEWISE, PIECEWISE_ONLY, GraphDriver, replays_equal_eager
from tests.model_driver import CPU

MTP = 3
GRAPHS = FULL_AND_PIECEWISE.with_drafts(MTP)
DTYPES = {
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8": torch.bfloat16,
    "fp8_ds_mla": torch.bfloat16,
}


@pytest.fixture(scope="module")
def drafting():
    return dsa_model(num_hidden_layers=2, mtp=MTP)


def test_target_replays_steps_that_verify_drafts(small_model):
    steps = replays_equal_eager(small_model, GRAPHS, steps=40)
    assert steps["NONE"] == 0
    assert min(steps["FULL"], steps["PIECEWISE"]) > 8


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_replayed_draft_equals_eager(kv_dtype):
    dtype = DTYPES[kv_dtype]
    model = dsa_model(num_hidden_layers=1, dtype=dtype, hadamard=kv_dtype.startswith("fp8"), mtp=MTP)
    steps = replays_equal_eager(model, GRAPHS, steps=40, kv_dtype=kv_dtype, draft=0)
    assert steps["NONE"] == 0
    assert min(steps["FULL"], steps["PIECEWISE"]) > 8


@pytest.mark.parametrize("kernels", ["cpp", "torch"])
def test_piecewise_alone_with_its_checks(kernels):
    model = dsa_model(num_hidden_layers=1, kernels=kernels, mtp=MTP)
    graphs = replace(PIECEWISE_ONLY.with_drafts(MTP), debug=True)
    steps = replays_equal_eager(model, graphs, steps=30, draft=0, seed=3)
    assert steps == {"NONE": 0, "PIECEWISE": 30, "FULL": 0}


def test_a_draft_has_one_break_and_two_segments(drafting):
    driver = GraphDriver(drafting, GRAPHS, draft=0)
    graphs = driver.forward._graphs.values()
    counts = {(g.descriptor.mode, g.breaks, g.segments) for g in graphs}
    assert counts == {(GraphMode.PIECEWISE, 1, 2), (GraphMode.FULL, 0, 1)}
    rows = {(g.descriptor.num_reqs, g.descriptor.num_tokens) for g in graphs if g.descriptor.query_len == 4}
    assert rows == {(1, 4), (2, 8), (4, 16)}  # sizes count requests


def test_hidden_states_of_padding_rows_are_cleared(drafting):
    """Stale ones would decide which experts the padding takes, and with whom live rows share a product."""
    driver = GraphDriver(drafting, GRAPHS, draft=0)
    for seq in range(3):
        driver.step({seq: [5 + seq] * 40})
    driver.inputs.hidden.fill_(torch.nan)
    work = {seq: [7, 8, 9, 10] for seq in range(3)}
    hidden, mode = driver.step(work)
    assert mode is GraphMode.FULL
    assert hidden.isfinite().all()
    assert (driver.inputs.hidden[12:16] == 0).all()


def graphed(model, graphs, *, index_share=False, greedy=False):
    """All drafts of a model over inputs that one prompt has filled."""
    config = replace(model.config, index_share_for_mtp_iteration=index_share)
    model.config = config
    driver = GraphDriver(model, GraphConfig(), draft=0)
    assert isinstance(driver.inputs, DraftInputs)
    drafts = GraphedDrafts(
        model=model,
        model_config=config,
        mtp=MTP,
        caches=driver.caches,
        inputs=driver.inputs,
        config=graphs,
    )
    if greedy:
        drafts.follow_greedy()
    drafts.capture()
    return driver, drafts


def test_draft_0_is_one_pass_and_later_ones_of_a_layer_another(drafting):
    driver, drafts = graphed(drafting, GRAPHS)
    first, later = drafts.passes
    states, mode = drafts.run(0, driver.fill({0: [5] * 9, 1: [6] * 8}))
    assert (len(states), mode) == (2, GraphMode.NONE), "a state per request; a prompt runs without a graph"
    driver.advance({0: [5] * 9, 1: [6] * 8})
    states, mode = drafts.run(0, driver.fill({0: [5] * 4, 1: [6] * 4}))
    assert (len(states), mode) == (2, GraphMode.FULL)
    one = driver.fill({0: [6]})
    assert [drafts.run(step, one)[1] for step in (1, 2)] == [GraphMode.FULL] * 2
    assert first.counts.steps == {"NONE": 1, "PIECEWISE": 0, "FULL": 1}
    assert later.counts.steps == {"NONE": 0, "PIECEWISE": 0, "FULL": 2}


@pytest.mark.parametrize(
    ("model_class", "graphs"),
    [
        (DsaModel, GraphConfig()),
        (DsaModel, GRAPHS),
        (DsaModel, PIECEWISE_ONLY),
        (GenericModel, GraphConfig()),
        (GenericModel, replace(GRAPHS, mixed=GraphMode.NONE)),
    ],
)
def test_greedy_passes_leave_tokens_and_states_for_the_next(model_class, graphs):
    """As many rows as a graph has, fewer, and prompts: the most likely tokens of the very states."""
    model = dsa_model(num_hidden_layers=1, mtp=MTP, model_class=model_class)
    plain_driver, plain = graphed(model, graphs)
    driver, greedy = graphed(model, graphs, greedy=True)
    for work in ({0: [5] * 9}, {0: [6, 7, 8, 9]}, {0: [4] * 4, 1: [3] * 7}, {0: [6] * 4, 1: [9, 8, 7, 6]}):
        states, mode = plain.run(0, plain_driver.fill(work))
        tokens, greedy_mode = greedy.run(0, driver.fill(work))
        assert mode is greedy_mode
        for step in range(MTP):
            count = len(work)
            wanted = model.draft_logits(states, step=step).argmax(dim=-1)
            assert torch.equal(tokens[:, 0], wanted)
            assert torch.equal(driver.inputs.input_ids[:count], wanted)
            assert torch.equal(driver.inputs.hidden[:count], states)
            plain_driver.inputs.hidden[:count] = states.clone()
            if step == MTP - 1:
                break
            one = {seq: [11 + step] for seq in work}
            kept = [part.inputs.hidden[:count].clone() for part in (plain_driver, driver)]
            shapes = [part.fill(one) for part in (plain_driver, driver)]
            for part, hidden in zip((plain_driver, driver), kept, strict=True):
                part.inputs.hidden[:count] = hidden
            states, _ = plain.run(step + 1, shapes[0])
            tokens, _ = greedy.run(step + 1, shapes[1])
        plain_driver.advance(work)
        driver.advance(work)


def test_a_prompt_alone_replays_draft_0(drafting):
    """Padded, with what it did not pad to left as it was; two prompts have no graph."""
    driver, drafts = graphed(drafting, GRAPHS)
    other, eager = graphed(drafting, GraphConfig())
    for work, mode in (
        ({0: [5] * 9}, "PIECEWISE"),
        ({0: [6] * 5, 1: [7] * 6}, "NONE"),
        ({1: [8] * 64}, "PIECEWISE"),
    ):
        found, replayed = drafts.run(0, driver.fill(work))
        wanted, _ = eager.run(0, other.fill(work))
        assert replayed == mode
        assert torch.equal(found, wanted)
        driver.advance(work)
        other.advance(work)
        assert driver.same_caches(other)


@pytest.mark.parametrize("model_class", [DsaModel, GenericModel])
def test_a_state_does_not_depend_on_what_else_is_wanted(model_class):
    """Against all rows of the batch at once: the same states, selections and keys."""
    model = dsa_model(num_hidden_layers=1, mtp=MTP, model_class=model_class)
    drivers = [GraphDriver(model, GraphConfig(), draft=0) for _ in range(2)]
    for part in ({0: list(range(5, 45)), 1: [7, 8, 9]}, {0: list(range(50, 90)), 1: [4] * 21, 2: [3]}):
        found = []
        for driver in drivers:
            shape = driver.fill(part)
            batch = driver.inputs.batch(shape)
            assert batch.wanted is not None
            rows = batch.wanted.rows
            if driver is drivers[1]:
                batch = replace(batch, wanted=None)
            states = model.draft(batch, driver.inputs.hidden[: shape.num_tokens], driver.caches)
            whole = driver is drivers[1]
            selected = batch.topk_indices[rows] if whole else batch.queries.topk_indices
            found.append((states[rows] if whole else states, selected.sort(dim=1).values))
            driver.advance(part)
        live = drivers[0].inputs.last_lengths[: len(part)] > 0
        assert live.any()
        torch.testing.assert_close(found[0][0][live], found[1][0][live], rtol=1e-5, atol=1e-5)
        assert torch.equal(found[0][1][live], found[1][1][live])
    assert drivers[0].same_caches(drivers[1])


def chosen_rows(driver, drafts, *, fresh):
    """States of drafts 0 to 2 after a prompt of 100, by the recycling that a runner does."""
    work = {0: list(range(5, 105)), 1: list(range(9, 80))}
    found = []
    for seq, tokens in work.items():
        for start in range(0, len(tokens), 40):
            part = {seq: tokens[start : start + 40]}
            states, _ = drafts.run(0, driver.fill(part))
            driver.advance(part)
        found.append((states[0].clone(), driver.inputs.topk_indices[0].clone()))
    hidden, selection = (torch.stack(rows) for rows in zip(*found, strict=True))
    outputs = [hidden]
    for step in (1, 2):
        part = {0: [17 + step], 1: [19 + step]}
        shape = driver.fill(part)
        driver.inputs.hidden[:2] = outputs[-1]
        driver.inputs.topk_indices[:2] = -7 if fresh else selection
        outputs.append(drafts.run(step, shape)[0].clone())
        driver.advance(part)
        if not fresh:
            assert torch.equal(driver.inputs.topk_indices[:2], selection)
    return torch.stack(outputs)


@pytest.mark.parametrize("graphs", [GraphConfig(), GRAPHS], ids=["eager", "graphs"])
def test_shared_selection_is_that_of_draft_0(graphs):
    model = dsa_model(num_hidden_layers=1, mtp=MTP)
    own = chosen_rows(*graphed(model, graphs), fresh=True)
    driver, drafts = graphed(model, graphs, index_share=True)
    assert len(drafts.passes) == 2
    shared = chosen_rows(driver, drafts, fresh=False)
    assert torch.equal(own[0], shared[0])
    assert not torch.allclose(own[1], shared[1], atol=1e-4)


def test_a_step_above_every_size_runs_eager(drafting):
    driver, drafts = graphed(drafting, replace(GRAPHS, piecewise_sizes=(8,)))
    states, mode = drafts.run(0, driver.fill({0: [5] * 33}))
    assert mode is GraphMode.NONE
    assert states.shape == (1, drafting.config.hidden_size)
    nothing = BatchShape(num_tokens=0, num_reqs=0, query_len=None, max_length=0)
    assert drafts.run(0, nothing)[1] is GraphMode.NONE


def test_a_model_that_cannot_draft_is_refused(drafting):
    driver = GraphDriver(drafting, GraphConfig(), draft=0)
    with pytest.raises(UserError, match=r"mtp=3: object cannot draft; set mtp=0"):
        GraphedDrafts(
            model=object(),
            model_config=drafting.config,
            mtp=3,
            caches=driver.caches,
            inputs=driver.inputs,
            config=GRAPHS,
        )


def test_every_different_pass_is_compiled_once():
    model = dsa_model(num_hidden_layers=1, mtp=MTP)
    for share in (False, True):
        driver, drafts = graphed(model, GraphConfig(), index_share=share)
        batch = padding_batch(3, model.config.index_topk, CPU)
        found = dict(drafts.compile(batch))
        assert list(found) == [0, 1]
        assert [len(states) for states in found.values()] == [1, 3]
        assert all(cache.kv.isnan().all() for cache in driver.caches), "padding has written"
