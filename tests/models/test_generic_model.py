"""The generic model beyond the oracle: precisions, limits, padding, contexts."""

from __future__ import annotations

import pytest
import torch

from paths.api import ModelSource
from paths.engine.context import current_context, forward_context
from paths.generic_mrv1 import ops
from paths.generic_mrv1.model import GenericModel
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from tests.kernels.inputs import CACHE_DTYPES
from tests.model_driver import CPU, ModelDriver, build_model, score
from tests.models.hf_configs import hf


def tiny(name="tiny_v32", dtype=torch.float32, **changes):
    config = ModelConfig.from_hf(hf(name, **changes))
    source = ModelSource(name=name, hf_config={}, checkpoint="dummy")
    return config, load_weights(source, config, dtype=dtype, device=CPU)


def tokens(length, seed=0):
    return torch.randint(3, 2048, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("name", ["tiny_v32", "tiny_glm"])
@pytest.mark.parametrize(("kv_dtype", "index_dtype"), CACHE_DTYPES)
def test_every_cache_format_stays_close_to_float32(name, kv_dtype, index_dtype):
    config, weights = tiny(name)
    model = build_model(GenericModel, config, weights, hadamard=index_dtype == "fp8")
    plain = build_model(GenericModel, config, weights)
    sequences = [tokens(100), tokens(63, seed=1)]
    exact = score(ModelDriver(plain, config), sequences, chunk=64)
    driver = ModelDriver(model, config, kv_dtype=kv_dtype, index_dtype=index_dtype)
    scores = score(driver, sequences, chunk=64)
    for ours, expected in zip(scores, exact, strict=True):
        assert ours.isfinite().all()
        # the formats differ in precision, and now and then in a selected key
        limit = {"float32": 1e-5, "bf16": 0.05, "fp8": 0.35, "fp8_ds_mla": 0.35}[kv_dtype]
        assert (ours - expected).abs().mean() < limit
    if kv_dtype != "float32":
        assert not torch.equal(scores[0], exact[0])


def test_bf16_stays_close_to_float32():
    config, weights = tiny(dtype=torch.bfloat16)
    _, exact_weights = tiny()
    sequences = [tokens(100)]
    model = build_model(GenericModel, config, weights, dtype=torch.bfloat16)
    driver = ModelDriver(model, config, kv_dtype="bf16", index_dtype="bf16")
    ours = score(driver, sequences, chunk=33)[0]
    exact = score(ModelDriver(build_model(GenericModel, config, exact_weights), config), sequences, chunk=33)[
        0
    ]
    assert (ours - exact).abs().mean() < 0.1


def test_padding_rows_disturb_nobody_and_stay_finite():
    config, weights = tiny()
    model = build_model(GenericModel, config, weights)
    plain = score(ModelDriver(model, config), [tokens(70)], chunk=70)
    driver = ModelDriver(model, config)
    padded = score(driver, [tokens(70)], chunk=70, padding=11)
    torch.testing.assert_close(padded[0], plain[0], rtol=0, atol=2e-5)
    hidden = model.forward(driver.batch({}, padding=5), driver.caches)
    assert hidden.shape == (5, 256) and hidden.isfinite().all()


def test_no_rows_at_all():
    config, weights = tiny()
    driver = ModelDriver(build_model(GenericModel, config, weights), config)
    assert driver.model.forward(driver.batch({}), driver.caches).shape == (0, 256)


def test_layers_that_share_keep_the_selection_of_the_last_full_one():
    config, weights = tiny("tiny_glm")
    kernels = Kernels(CPU, "torch")
    driver = ModelDriver(build_model(GenericModel, config, weights, kernels=kernels), config)
    driver.step({0: tokens(100)})
    assert kernels.calls["index_topk"]["torch"] == sum(config.indexer_full) == 2
    assert kernels.calls["sparse_mla"]["torch"] == 4


def test_positions_beyond_the_tables_are_refused():
    config, weights = tiny()
    model = build_model(GenericModel, config, weights, max_model_len=64)
    driver = ModelDriver(model, config)
    driver.step({0: tokens(64)})
    with pytest.raises(ValueError, match="sees 65 keys, the model was built for 64"):
        driver.step({0: [5]})


def test_logits_are_float32():
    config, weights = tiny(dtype=torch.bfloat16)
    model = build_model(GenericModel, config, weights, dtype=torch.bfloat16)
    logits = model.logits(torch.zeros(2, 256, dtype=torch.bfloat16))
    assert logits.shape == (2, 2048) and logits.dtype is torch.float32
    assert model.compile_mode() == "none" and model.compile_count() == 0


def test_contexts_do_not_nest_and_ops_need_one():
    with pytest.raises(RuntimeError, match="no forward pass is running"):
        current_context()
    with pytest.raises(RuntimeError, match="no forward pass is running"):
        ops.sparse_attention(torch.zeros(1, 8, 576), 512, 1.0, 0)
    marker = object()
    with forward_context(marker):
        assert current_context() is marker
        with pytest.raises(RuntimeError, match="do not nest"), forward_context(marker):
            pass
    with pytest.raises(RuntimeError, match="no forward pass"):
        current_context()
