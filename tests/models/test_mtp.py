"""Drafts of both models against the trainer's forward pass, and the faults that MTP invites."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paths.api import ModelSource
from paths.dsa_mrv2.model import DsaModel
from paths.generic_mrv1.model import GenericModel
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.train.export import save_model
from paths.models.weights import load_weights
from tests.model_driver import CPU, ModelDriver, build_model
from tests.models.mtp_reference import GLM, HF, Reference, parameters
from tests.oracle import random_tokens

TOLERANCE = 1e-4
DRAFTS = 3
NOT_DRAWN = 2  # a token that no sequence holds
LENGTHS = (5, 100, 63)  # below and above index_topk 8 and the page of 64
MODELS = {
    "generic": (GenericModel, "torch", {}),
    "dsa": (DsaModel, "cpp", {"fused": "cpp"}),
    "dsa_composed": (DsaModel, "torch", {"fused": "composed"}),
}


@pytest.fixture(scope="module", params=["v32", "glm"])
def checkpoint(request, tmp_path_factory):
    """Configuration, folder, and the reference over the same values."""
    hf = {"v32": HF, "glm": GLM}[request.param]
    config = ModelConfig.from_hf(hf)
    values = parameters(config)
    folder = tmp_path_factory.mktemp(request.param)
    save_model(folder, hf, values, dtype=torch.float32)
    return config, folder, Reference(config, values)


def weights_of(config, folder, mtp=DRAFTS):
    source = ModelSource(name="mtp", hf_config={}, checkpoint=str(folder))
    return load_weights(source, config, dtype=torch.float32, device=CPU, mtp=mtp)


def driver_of(name, config, weights):
    model_class, kernels, options = MODELS[name]
    model = build_model(model_class, config, weights, kernels=Kernels(CPU, kernels), **options)
    return ModelDriver(model, config, mtp_layers=len(weights.mtp))


def drafted(driver, tokens, *, chunk, shift=1, position=0, first=None, renormed=None):
    """States of draft 0 at every position and of the later drafts, by sequence.

    Each sequence ends with the token that was sampled last, which is not fed to the main model; it stands
    for the drafted tokens too. shift, position, first, renormed: deliberate faults; position is added in
    later drafts only, for RoPE is relative: the same offset everywhere changes nothing.
    """
    model, caches = driver.model, driver.caches
    parts = [[] for _ in tokens]
    while True:
        ends = {seq: min(driver.lengths[seq] + chunk, len(t) - 1) for seq, t in enumerate(tokens)}
        work = {seq: tokens[seq][driver.lengths[seq] : end] for seq, end in ends.items()}
        work = {seq: part for seq, part in work.items() if part}
        if not work:
            break
        batch = driver.batch(work)
        following = [
            token for seq in work for token in tokens[seq][driver.lengths[seq] + shift : ends[seq] + shift]
        ]
        ids = torch.tensor(following)
        if first is not None:
            ids[batch.positions == 0] = first
        with torch.inference_mode():
            hidden = model.forward(batch, caches)
            states = model.draft(replace(batch, input_ids=ids), hidden, caches)
        sizes = [len(part) for part in work.values()]
        for seq, rows in zip(work, states.split(sizes), strict=True):
            driver.lengths[seq] = ends[seq]
            parts[seq].append(rows)
    for step in range(1, DRAFTS):
        batch = driver.batch({seq: [t[-1]] for seq, t in enumerate(tokens)})
        hidden = torch.cat([part[-1][-1:] for part in parts])
        if renormed is not None:
            hidden = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], renormed, 1e-6)
        with torch.inference_mode():
            states = model.draft(
                replace(batch, positions=batch.positions + position), hidden, caches, step=step
            )
        for seq in range(len(tokens)):
            parts[seq].append(states[seq : seq + 1])
            driver.lengths[seq] += 1
    return [torch.cat(part) for part in parts]


def expected(reference, tokens, steps=DRAFTS):
    """The same from the whole sequence at once, which grows by one recycled state per draft."""
    found = []
    for sequence in tokens:
        hidden, following = reference.hidden(sequence[:-1]), sequence[1:]
        for step in range(steps):
            states = reference.states(hidden, following)
            if step + 1 < steps:
                hidden, following = torch.cat([hidden, states[-1:]]), [*following, sequence[-1]]
        found.append(states)
    return found


@pytest.fixture(scope="module")
def sequences():
    return [random_tokens(length + 1, seed=length) for length in LENGTHS]


@pytest.fixture(scope="module")
def truth(checkpoint, sequences):
    _, _, reference = checkpoint
    return [reference.logits(states) for states in expected(reference, sequences)]


def worst(driver, sequences, truth, **options):
    chunk = options.pop("chunk", 64)
    found = drafted(driver, sequences, chunk=chunk, **options)
    logits = [driver.model.draft_logits(states) for states in found]
    return max(float((a - b).abs().max()) for a, b in zip(logits, truth, strict=True))


@pytest.mark.parametrize("chunk", [7, 128])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_those_of_the_reference(checkpoint, sequences, truth, name, chunk):
    config, folder, _ = checkpoint
    driver = driver_of(name, config, weights_of(config, folder))
    assert worst(driver, sequences, truth, chunk=chunk) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_every_fault_shows(checkpoint, sequences, truth, name):
    """Each of these must be seen, or the test above proves nothing of it."""
    config, folder, _ = checkpoint
    weights = weights_of(config, folder)

    def error(changed=weights, **options):
        return worst(driver_of(name, config, changed), sequences, truth, **options)

    def with_mtp(**changes):
        return replace(weights, mtp=(replace(weights.mtp[0], **changes),))

    mtp = weights.mtp[0]
    embedding = mtp.embed_tokens.clone()
    embedding[NOT_DRAWN] = 0
    halves = torch.cat(mtp.eh_proj.chunk(2, dim=1)[::-1], dim=1)
    faults = {
        "halves of eh_proj swapped": error(with_mtp(eh_proj=halves)),
        "norms swapped": error(with_mtp(enorm=mtp.hnorm, hnorm=mtp.enorm)),
        "the main model's norm": error(with_mtp(norm=weights.norm)),
        "recycled state normed twice": error(renormed=mtp.norm),
        "later drafts one position ahead": error(position=1),
        "ids not shifted": error(shift=0),
        "embedding of position 0 zeroed": error(with_mtp(embed_tokens=embedding), first=NOT_DRAWN),
    }
    assert min(faults.values()) > 100 * TOLERANCE, faults


def test_selection_is_the_mtp_layers_own(checkpoint, sequences, truth):
    config, folder, _ = checkpoint
    weights = weights_of(config, folder)
    layer = replace(weights.mtp[0].layer, indexer=weights.layers[-1].indexer)
    other = replace(weights, mtp=(replace(weights.mtp[0], layer=layer),))
    for name in ("generic", "dsa"):
        assert worst(driver_of(name, config, other), sequences, truth) > 100 * TOLERANCE


def test_caches_of_the_main_layers_are_left_alone(checkpoint, sequences):
    config, folder, _ = checkpoint
    for name in ("generic", "dsa"):
        driver = driver_of(name, config, weights_of(config, folder))
        work = {seq: tokens[:-1] for seq, tokens in enumerate(sequences)}
        batch = driver.batch(work)
        with torch.inference_mode():
            hidden = driver.model.forward(batch, driver.caches)
            before = [_bytes(cache) for cache in driver.caches]
            driver.model.draft(batch, hidden, driver.caches)
        changed = [
            not torch.equal(old, _bytes(cache)) for old, cache in zip(before, driver.caches, strict=True)
        ]
        assert changed == [False, False, True]


def _bytes(cache):
    return torch.cat([tensor.view(torch.uint8).flatten() for tensor in (cache.kv, cache.index)])


@pytest.mark.parametrize("name", ["generic", "dsa"])
def test_two_mtp_layers_take_turns(name):
    config = ModelConfig.from_hf(HF | {"num_nextn_predict_layers": 2})
    source = ModelSource(name="two", hf_config={}, checkpoint="dummy")
    both = load_weights(source, config, dtype=torch.float32, device=CPU, mtp=3)
    assert len(both.mtp) == 2
    driver = driver_of(name, config, both)
    batch = driver.batch({0: random_tokens(20, seed=1)})
    hidden = torch.randn(20, config.hidden_size)
    alone = [driver_of(name, config, replace(both, mtp=(layer,))) for layer in both.mtp]
    with torch.inference_mode():
        for step in range(4):
            ours = driver.model.draft(batch, hidden, driver.caches, step=step)
            other = alone[step % 2]
            theirs = other.model.draft(batch, hidden, other.caches)
            assert torch.equal(ours, theirs), step
    assert [torch.isfinite(cache.kv).any().item() for cache in driver.caches] == [False, False, True, True]
