"""torch.compile in pieces: same numbers, few compilations, a split per layer."""

from __future__ import annotations

import pytest
import torch

from paths.api import ModelSource
from paths.engine.batch import padding_batch
from paths.generic_mrv1.model import GenericModel
from paths.graphs.piecewise import PiecewiseCompiler
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from tests.model_driver import CPU, ModelDriver, build_model, score
from tests.models.hf_configs import hf

pytestmark = pytest.mark.no_poison
LAYERS = 2
SIZES = (64, 2, 1)


def two_models(dtype):
    """An eager and a compiled model over the same two layers, the second of them with experts."""
    config = ModelConfig.from_hf(hf(num_hidden_layers=LAYERS, vocab_size=512))
    source = ModelSource(name="two-layers", hf_config={}, checkpoint="dummy")
    weights = load_weights(source, config, dtype=dtype, device=CPU)
    eager = build_model(GenericModel, config, weights, dtype=dtype, max_model_len=2304)
    compiled = build_model(GenericModel, config, weights, dtype=dtype, max_model_len=2304, compiled=True)
    return config, eager, compiled


def warm_up(model, driver, config):
    for size in SIZES:
        model.forward(padding_batch(size, config.index_topk, CPU), driver.caches)


def tokens(length, seed=0):
    return torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", torch.float32), pytest.param("bf16", torch.bfloat16, marks=pytest.mark.slow)],
)
def test_same_numbers_and_no_compilation_after_warm_up(name, dtype):
    config, eager, compiled = two_models(dtype)
    drivers = [
        ModelDriver(model, config, kv_dtype=name, index_dtype=name, max_len=2304, max_seqs=2)
        for model in (eager, compiled)
    ]
    assert compiled.compile_mode() == "none"  # nothing ran yet
    warm_up(compiled, drivers[1], config)
    assert compiled.compile_count() == 2  # many rows, and one row
    assert compiled._compiler.pieces == LAYERS + 1
    worst, sums = 0.0, []
    for size in (1, 2, 3, 63, 64, 65, 100, 111, 1, 512):
        work = {0: tokens(size, seed=size)}
        ours, exact = drivers[1].step(work)[0], drivers[0].step(work)[0]
        worst = max(worst, (ours - exact).abs().max().item())
        sums.append((ours - exact).abs().mean().item())
    assert worst < 1e-4 if name == "float32" else max(sums) < 0.1
    # the largest step of all
    compiled.forward(padding_batch(2048, config.index_topk, CPU), drivers[1].caches)
    assert compiled.compile_count() == 2
    assert compiled.compile_mode() == "inductor-piecewise"


def test_models_of_one_process_do_not_share_graphs():
    """Guards on weights and configuration are dropped, so each model needs graphs of its own."""
    _, _, first = two_models(torch.float32)
    config, eager, second = two_models(torch.float32)
    scaled = build_model(
        GenericModel,
        ModelConfig.from_hf(hf(num_hidden_layers=LAYERS, vocab_size=512, routed_scaling_factor=0.5)),
        load_weights(
            ModelSource(name="x", hf_config={}, checkpoint="dummy"),
            config,
            dtype=torch.float32,
            device=CPU,
        ),
        max_model_len=2304,
        compiled=True,
    )
    results = [
        score(ModelDriver(model, config), [tokens(30)], chunk=30)[0]
        for model in (first, scaled, second, eager)
    ]
    torch.testing.assert_close(results[2], results[3], rtol=0, atol=1e-4)
    torch.testing.assert_close(results[0], results[3], rtol=0, atol=1e-4)
    assert (results[1] - results[3]).abs().max() > 0.01


class Doubler:
    """A model of two pieces around one opaque op."""

    def __init__(self):
        self.compiler = PiecewiseCompiler(self.run, split_ops=[torch.ops.aten.sin.default])

    def run(self, x, y):
        return torch.ops.aten.sin.default(x * 2 + y) + 1


def test_pieces_and_counts_of_a_small_function():
    model = Doubler()
    x = torch.randn(5, 3)
    for rows, compiles in ((5, 1), (4, 1), (2, 1), (1, 2), (3, 2), (1, 2)):
        torch.testing.assert_close(model.compiler(x[:rows], x[:rows]), (x[:rows] * 3).sin() + 1)
        assert model.compiler.compiles == compiles
    assert model.compiler.pieces == 2
    assert model.compiler.pieces_run == 12
    # another dtype is another graph, and it is counted
    model.compiler(x.double(), x.double())
    assert model.compiler.compiles == 3
