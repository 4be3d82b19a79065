"""The memory that a model needs, foretold without torch and compared with what torch allocates."""

import pytest
import torch

from harness.memory import cache_bytes, needed_bytes, weight_bytes
from paths.models.weights import load_weights, named_tensors
from tests.harness.cells import make_cell


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", torch.bfloat16), ("float32", torch.float32)])
@pytest.mark.parametrize("model", ["tiny_v32", "tiny_glm"])
def test_weights_are_foretold(model, dtype, kind):
    cell = make_cell(f"model={model}", f"dtype={dtype}", "checkpoint=dummy")
    weights = load_weights(cell.engine.model, cell.model, dtype=kind, device=torch.device("cpu"))
    made = sum(tensor.nbytes for _, tensor in named_tensors(weights))
    assert weight_bytes(cell) <= made  # norms and biases are left out
    assert weight_bytes(cell) == pytest.approx(made, rel=0.01)


def test_caches_follow_both_dtypes():
    """576 latent and rope values and an index key of 128 in each layer; one page is the null page."""
    layers, tokens = make_cell().model.num_hidden_layers, 64 * 64
    for words, per_token in (
        (("dtype=bf16",), 576 * 2 + 128 * 2),
        (("dtype=float32",), 576 * 4 + 128 * 4),
        (("kv_dtype=fp8",), 576 + 132),
        (("kv_dtype=fp8_ds_mla",), 656 + 132),
        (("index_dtype=fp8",), 576 * 2 + 132),
        (("kv_dtype=fp8", "index_dtype=float32"), 576 + 128 * 4),
    ):
        cell = make_cell("engine.kv_pages=63", *words)
        assert cache_bytes(cell) == layers * tokens * per_token, words


def test_weights_are_there_twice_while_they_load():
    cell = make_cell()
    assert needed_bytes(cell) == 2 * weight_bytes(cell) + cache_bytes(cell)
