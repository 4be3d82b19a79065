"""A KV scale that is off by 2 where it is read: answers of real engines, compared."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.equivalence.asking import Asker
from harness.equivalence.compare import compare
from harness.workload.source import Prompt, prompt_hash
from paths.kernels.registry import Kernels
from tests.harness.equivalence.test_referee import InProcess
from tests.runners.engines import VOCAB, make_engine


def asker(model, **changes):
    rng = np.random.default_rng(0)
    drawn = [rng.integers(3, VOCAB, size).astype(np.int32) for size in (1, 5, 17, 40, 63, 9)]
    prompts = [Prompt(ids, 8, prompt_hash(ids)) for ids in drawn]
    engine = make_engine(model, "V2", **{"kv_dtype": "fp8", "index_topk": 8} | changes)
    return Asker(endpoint=InProcess(engine), prompts=prompts[:5], others=prompts[5:], exact_lengths=True)


@pytest.fixture
def twice_the_scale(monkeypatch):
    """Attention reads what was written with another scale."""
    right = Kernels.sparse_mla

    def wrong(self, q, cache, *args, **kwargs):
        return right(self, q, dataclasses.replace(cache, k_scale=cache.k_scale * 2), *args, **kwargs)

    return lambda: monkeypatch.setattr(Kernels, "sparse_mla", wrong)


def test_it_is_far_beyond_the_arm_itself_and_beyond_another_path(twice_the_scale):
    ours, healthy = asker("dsa"), asker("generic")
    first = [ours.answers(concurrency, None) for concurrency in (1, 6)]

    def against(other):
        return [
            compare(one, other.answers(one.concurrency, one.tokens), near_tie=1e-4).forced for one in first
        ]

    itself, other_path = against(ours), against(healthy)
    twice_the_scale()
    faulty = against(ours)
    for own, other, wrong in zip(itself, other_path, faulty, strict=True):
        assert own.positions == other.positions == wrong.positions == 40
        assert wrong.mean_abs_dlogprob > 100 * max(own.mean_abs_dlogprob, 1e-5)
        assert wrong.mean_kl > 100 * max(own.mean_kl, 1e-8)
        assert wrong.mean_abs_dlogprob > 10 * other.mean_abs_dlogprob
