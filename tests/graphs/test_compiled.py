"""Graphs of the generic model: each compiled piece a segment, what stands between two pieces a break."""

from __future__ import annotations

import pytest
import torch

from paths.api import ModelSource, UserError
from paths.engine.batch import half_wanted, padding_batch
from paths.generic_mrv1.model import GenericModel
from paths.graphs import generated
from paths.graphs.config import GraphConfig, GraphMode
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from tests.graphs.driver import (
    FULL_AND_PIECEWISE,
    FULL_ONLY,
    MAX_LEN,
    PIECEWISE_ONLY,
    VOCAB,
    GraphDriver,
    replays_equal_eager,
)
from tests.model_driver import CPU, build_model
from tests.models.hf_configs import hf

pytestmark = pytest.mark.no_poison


def generic_model(*, layers, compiled, dtype=torch.float32, mtp=0):
    config = ModelConfig.from_hf(hf(vocab_size=VOCAB, num_hidden_layers=layers))
    source = ModelSource(name="graphs", hf_config={}, checkpoint="dummy")
    weights = load_weights(source, config, dtype=dtype, device=CPU, mtp=mtp)
    return build_model(
        GenericModel,
        config,
        weights,
        kernels=Kernels(CPU, "cpp"),
        dtype=dtype,
        max_model_len=MAX_LEN,
        compiled=compiled,
    )


def compiled_model():
    model = generic_model(layers=2, compiled=True)
    caches = GraphDriver(model, GraphConfig()).caches
    for rows in (64, 2, 1):
        model.forward(padding_batch(rows, model.config.index_topk, CPU), caches)
    return model


@pytest.fixture(scope="module")
def compiled():
    return compiled_model()


def check(model, graphs, *, steps):
    compiles, layers = model.compile_count(), len(model._layers)
    counts = replays_equal_eager(model, graphs, steps=steps)
    assert model.compile_count() == compiles, "a capture has compiled again"
    driver = GraphDriver(model, graphs)
    structure = {(g.descriptor.mode, g.breaks, g.segments) for g in driver.forward._graphs.values()}
    expected = {(GraphMode.FULL, 0, 1)} if graphs.decode is GraphMode.FULL else set()
    if graphs.mixed is GraphMode.PIECEWISE:
        expected |= {(GraphMode.PIECEWISE, layers, layers + 1)}
    assert structure == expected
    return counts


def test_replay_of_compiled_pieces_equals_compiled_code(compiled):
    steps = check(compiled, FULL_AND_PIECEWISE, steps=40)
    assert steps["NONE"] == 0
    assert min(steps["FULL"], steps["PIECEWISE"]) > 8


def test_pieces_that_stay_whole_find_what_their_ops_look_up(monkeypatch):
    """As under a torch that hands its generated code over in another way."""
    monkeypatch.setattr(generated, "_code_of", lambda graph: None)
    steps = check(compiled_model(), FULL_AND_PIECEWISE, steps=20)
    assert min(steps["FULL"], steps["PIECEWISE"]) > 3


def test_pieces_and_kernels_are_counted_as_without_graphs(compiled):
    """Experts run inside of a piece, which counts them itself; attention in eager parts or in the graph."""
    kernels, compiler = compiled.kernels, compiled._compiler

    def counts(run):
        before = {op: sum(c.values()) for op, c in kernels.calls.items()} | {"pieces": compiler.pieces_run}
        run()
        after = {op: sum(c.values()) for op, c in kernels.calls.items()} | {"pieces": compiler.pieces_run}
        return {op: after[op] - before[op] for op in after if after[op] != before[op]}

    driver = GraphDriver(compiled, FULL_AND_PIECEWISE)
    eager = GraphDriver(compiled, GraphConfig())
    for work in ({0: [5] * 63}, {0: [6]}, {0: [7]}, {0: [8] * 9}):
        replayed = counts(lambda work=work: driver.step(work))
        assert replayed == counts(lambda work=work: eager.step(work))
        assert replayed["pieces"] == 3
        assert replayed["moe_experts"] == 1
    assert driver.forward.counts.steps == {"NONE": 0, "PIECEWISE": 2, "FULL": 2}


def test_buffers_of_the_breaks_are_counted(compiled):
    driver = GraphDriver(compiled, PIECEWISE_ONLY)
    config = compiled.config
    row = 4 * config.num_attention_heads * config.kv_lora_rank
    rows = sum(d.num_tokens for d in driver.forward._graphs)
    output = 64 * config.hidden_size * 4
    pieces = sum(len(block) for block in driver.forward._capturer._backend._scratch._free)
    assert 0 < pieces < 64 * 64 * row  # shared by all graphs
    assert driver.forward.captured.memory_bytes == config.num_hidden_layers * rows * row + output + pieces


def test_eager_generic_model_has_full_graphs_only():
    model = generic_model(layers=2, compiled=False)
    with pytest.raises(UserError, match="neither compiled nor breakable"):
        GraphDriver(model, PIECEWISE_ONLY)
    steps = check(model, FULL_ONLY, steps=40)
    assert steps["FULL"] > 8
    assert steps["PIECEWISE"] == 0


@pytest.mark.slow
def test_drafts_of_compiled_pieces_replay_and_never_compile_again():
    model = generic_model(layers=1, compiled=True, mtp=3)
    driver = GraphDriver(model, GraphConfig(), draft=0)
    for rows in (64, 2, 1):
        batch = half_wanted(padding_batch(rows, model.config.index_topk, CPU))
        driver.model.forward(batch, driver.caches)
    assert model.compile_count() == 3  # many rows of many, one of many, one of one
    for draft in (0, 1):
        steps = replays_equal_eager(model, FULL_AND_PIECEWISE.with_drafts(3), steps=30, draft=draft)
        assert steps["NONE"] == 0
        assert min(steps["FULL"], steps["PIECEWISE"]) > 4
    driver = GraphDriver(model, PIECEWISE_ONLY, draft=0)
    assert {(g.breaks, g.segments) for g in driver.forward._graphs.values()} == {(1, 2)}
    assert model.compile_count() == 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_four_layers(dtype):
    model = generic_model(layers=4, compiled=True, dtype=dtype)
    caches = GraphDriver(model, GraphConfig()).caches
    for rows in (64, 2, 1):
        model.forward(padding_batch(rows, model.config.index_topk, CPU), caches)
    for graphs in (FULL_AND_PIECEWISE, PIECEWISE_ONLY, FULL_ONLY):
        check(model, graphs, steps=60)
