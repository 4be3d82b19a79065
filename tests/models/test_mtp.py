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


def drafted(driver, tokens, *, chunk, steps=DRAFTS, shift=1, renormed=None):
    """States of draft 0 at every position and of the later drafts, per sequence; the drafts are `tokens[-1]`.

    Each sequence ends with the token that was sampled last, which is not fed to the main model.
    """
    model, caches = driver.model, driver.caches
    parts = [[] for _ in tokens]
    while True:
        done = driver.lengths
        work = {s: t[done[s] : min(done[s] + chunk, len(t) - 1)] for s, t in enumerate(tokens)}
        work = {s: part for s, part in work.items() if part}
        if not work:
            break
        batch = driver.batch(work)
        with torch.inference_mode():
            hidden = model.forward(batch, caches)
            following = [t for s, p in work.items() for t in tokens[s][done[s] + 1 : done[s] + 1 + len(p)]]
            batch = replace(
                batch,
                input_ids=torch.tensor(following),
                positions=(batch.positions + shift - 1).clamp(min=0),
            )
            states = model.draft(batch, hidden, caches)
        for (seq, part), rows in zip(
            work.items(), states.split([len(p) for p in work.values()]), strict=True
        ):
            driver.lengths[seq] += len(part)
            parts[seq].append(rows)
    for step in range(1, steps):
        batch = driver.batch({seq: [t[-1]] for seq, t in enumerate(tokens)})
        hidden = torch.cat([part[-1][-1:] for part in parts])
        if renormed is not None:
            hidden = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], renormed, 1e-6)
        with torch.inference_mode():
            states = model.draft(batch, hidden, caches, step=step)
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
