"""float32 log-probs of the models against transformers on random checkpoints that transformers saved.

Contexts are far longer than index_topk (8), batches mix short and long requests, blocks are shuffled and all
unwritten memory is NaN.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch

from paths.api import ModelSource
from paths.generic_mrv1 import layer as generic_layer
from paths.generic_mrv1.model import GenericModel
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig, read_hf_config
from paths.models.weights import Weights, load_weights
from tests.model_driver import CPU, ModelDriver, build_model, score
from tests.oracle import FLAVOURS, oracle_logprobs, random_tokens, save_checkpoint

TOLERANCE = 1e-4
LENGTHS = (111, 5, 63, 70)
MODELS = {"generic": GenericModel}


@dataclasses.dataclass(frozen=True)
class Case:
    """A checkpoint as we loaded it, sequences, and transformers' log-probs for them."""

    config: ModelConfig
    weights: Weights
    sequences: list[list[int]]
    expected: list[torch.Tensor]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    made: dict[str, Case] = {}

    def case(flavour: str) -> Case:
        if flavour not in made:
            folder: Path = tmp_path_factory.mktemp(flavour)
            model = save_checkpoint(flavour, folder)
            config = ModelConfig.from_hf(read_hf_config(folder))
            source = ModelSource(name=flavour, hf_config={}, checkpoint=str(folder))
            weights = load_weights(source, config, dtype=torch.float32, device=CPU)
            sequences = [random_tokens(length, seed=length) for length in LENGTHS]
            made[flavour] = Case(config, weights, sequences, [oracle_logprobs(model, s) for s in sequences])
        return made[flavour]

    return case


def worst(case: Case, model, *, chunk: int = 200, padding: int = 0) -> float:
    """Largest difference of a log-prob over all positions of all sequences."""
    scores = score(ModelDriver(model, case.config), case.sequences, chunk=chunk, padding=padding)
    differences = [
        (ours - theirs).abs().max().item() for ours, theirs in zip(scores, case.expected, strict=True)
    ]
    assert all(difference == difference for difference in differences), "NaN"
    return max(differences)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("chunk", [200, 64, 7, 1])
def test_log_probs(cases, name, flavour, chunk):
    """Prefill in one piece and in chunks; chunks of 1 are decode token by token."""
    case = cases(flavour)
    model = build_model(MODELS[name], case.config, case.weights)
    assert worst(case, model, chunk=chunk, padding=3) < TOLERANCE


@pytest.mark.parametrize("implementation", ["reference", "auto"])
def test_log_probs_with_other_kernels(cases, implementation):
    case = cases("v32")
    short = dataclasses.replace(
        case, sequences=[s[:40] for s in case.sequences], expected=[e[:40] for e in case.expected]
    )
    model = build_model(GenericModel, case.config, case.weights, kernels=Kernels(CPU, implementation))
    assert worst(short, model, chunk=9) < TOLERANCE


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_chunking_changes_nothing(cases, flavour):
    case = cases(flavour)
    model = build_model(GenericModel, case.config, case.weights)
    whole = score(ModelDriver(model, case.config), case.sequences, chunk=200)
    alone = score(ModelDriver(model, case.config, seed=5), case.sequences[:1], chunk=13)
    torch.testing.assert_close(alone[0], whole[0], rtol=0, atol=2e-5)


def test_topk_beyond_the_context_equals_dense_attention(tmp_path):
    model = save_checkpoint("v32", tmp_path, index_topk=128)
    config = ModelConfig.from_hf(read_hf_config(tmp_path))
    source = ModelSource(name="dense", hf_config={}, checkpoint=str(tmp_path))
    weights = load_weights(source, config, dtype=torch.float32, device=CPU)
    tokens = random_tokens(100, seed=1)
    ours = build_model(GenericModel, config, weights)
    scores = score(ModelDriver(ours, config), [tokens], chunk=64)[0]
    assert (scores - oracle_logprobs(model, tokens)).abs().max() < TOLERANCE


# deliberate faults: each must break the agreement, or the tests above prove nothing


def with_config(case: Case, **changes) -> Case:
    return dataclasses.replace(case, config=dataclasses.replace(case.config, **changes))


def with_layers(case: Case, change) -> Case:
    layers = tuple(change(layer) for layer in case.weights.layers)
    return dataclasses.replace(case, weights=dataclasses.replace(case.weights, layers=layers))


def with_indexer(case: Case, change) -> Case:
    def changed(layer):
        if layer.indexer is None:
            return layer
        indexer = dataclasses.replace(layer.indexer, **change(layer))
        return dataclasses.replace(layer, indexer=indexer)

    return with_layers(case, changed)


class LatentScaleConfig(ModelConfig):
    """The width of the absorbed query instead of the model's head."""

    @property
    def softmax_scale(self) -> float:
        return (self.kv_lora_rank + self.qk_rope_head_dim) ** -0.5 * self.rope.softmax_correction


def latent_scale(case: Case) -> Case:
    fields = {f.name: getattr(case.config, f.name) for f in dataclasses.fields(case.config)}
    return dataclasses.replace(case, config=LatentScaleConfig(**fields))


# faults of configuration and weights fit every model
DATA_FAULTS = {
    "indexer RoPE layout swapped": lambda case: with_config(
        case, indexer_rope_interleave=not case.config.indexer_rope_interleave
    ),
    "main RoPE layout swapped": lambda case: with_config(
        case, rope_interleave=not case.config.rope_interleave
    ),
    "LayerNorm bias dropped": lambda case: with_indexer(
        case, lambda layer: {"k_norm_bias": torch.zeros_like(layer.indexer.k_norm_bias)}
    ),
    # scores are linear in each query, so the norm matters by its weight alone: dividing it out undoes it
    "indexer query taken before the norm": lambda case: with_indexer(
        case, lambda layer: {"wq_b": layer.indexer.wq_b / layer.attention.q_a_layernorm}
    ),
    "scale of the latent width": latent_scale,
    "routed scaling missing": lambda case: with_config(case, routed_scaling_factor=1.0),
    "selection weights not normalised": lambda case: with_config(case, norm_topk_prob=False),
    "grouping ignored": lambda case: with_config(case, n_group=1, topk_group=1),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_a_fault_in_configuration_or_weights_is_noticed(cases, name, fault):
    case = DATA_FAULTS[fault](cases("v32"))
    assert worst(case, build_model(MODELS[name], case.config, case.weights)) > 100 * TOLERANCE


@pytest.mark.parametrize("fault", ["indexer RoPE layout swapped", "main RoPE layout swapped"])
def test_the_layouts_of_glm_are_noticed(cases, fault):
    case = DATA_FAULTS[fault](cases("glm_shared"))
    assert worst(case, build_model(GenericModel, case.config, case.weights)) > 100 * TOLERANCE


def test_a_layer_that_ignores_sharing_is_noticed(cases):
    """Layer 2 selecting with its own indexer, here a copy of layer 1's, instead of reusing the selection."""
    case = cases("glm_shared")
    layers = list(case.weights.layers)
    layers[2] = dataclasses.replace(layers[2], indexer=layers[1].indexer)
    full = (True, True, True, False, True)
    broken = with_config(
        dataclasses.replace(case, weights=dataclasses.replace(case.weights, layers=tuple(layers))),
        indexer_full=full,
    )
    assert worst(broken, build_model(GenericModel, broken.config, broken.weights)) > 100 * TOLERANCE


def no_relu(q, weights, cache, batch, k):
    """Selection by scores whose negative products count."""
    from paths.kernels.index_topk import reference

    original = reference.index_logits
    reference.index_logits = lambda q, w, keys: (w[:, None] * (q.float() @ keys.T)).sum(0)
    try:
        reference.index_topk(q, weights, cache, batch, k)
    finally:
        reference.index_logits = original


def test_a_dropped_relu_is_noticed(cases):
    case = cases("v32")
    kernels = Kernels(CPU, "torch")
    kernels._functions["index_topk"] = no_relu
    assert (
        worst(case, build_model(GenericModel, case.config, case.weights, kernels=kernels)) > 100 * TOLERANCE
    )


def route(x, gate, bias, *, n_group, topk_group, top_k, norm, scaling, group_score, weights_of):
    """The router with its two choices open."""
    scores = torch.sigmoid(x.float() @ gate.T)
    biased = scores + bias
    grouped = biased.unflatten(-1, (n_group, -1))
    kept = group_score(grouped).topk(topk_group, dim=-1).indices
    mask = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, kept, False)
    ids = grouped.masked_fill(mask[..., None], -torch.inf).flatten(-2).topk(top_k, dim=-1).indices
    weights = weights_of(scores, biased).gather(-1, ids)
    return weights / weights.sum(-1, keepdim=True) * scaling, ids.int()


def by_sum(grouped):
    return grouped.topk(2, dim=-1).values.sum(-1)


def by_max(grouped):
    return grouped.amax(-1)


ROUTERS = {
    "right": (by_sum, lambda scores, biased: scores),
    "group score by max": (by_max, lambda scores, biased: scores),
    "bias in the weights": (by_sum, lambda scores, biased: biased),
}


@pytest.mark.parametrize("router", ROUTERS)
def test_a_fault_in_routing_is_noticed(cases, monkeypatch, router):
    """The open router agrees with transformers when it is right, so the others show their own fault."""
    group_score, weights_of = ROUTERS[router]
    monkeypatch.setattr(
        generic_layer, "moe_route", partial(route, group_score=group_score, weights_of=weights_of)
    )
    case = cases("v32")
    difference = worst(case, build_model(GenericModel, case.config, case.weights))
    assert difference < TOLERANCE if router == "right" else difference > 100 * TOLERANCE
