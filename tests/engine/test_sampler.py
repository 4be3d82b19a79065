"""Sampling: masks, determinism, distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paths.engine.sampler import SamplingInputs, sample
from paths.kernels.sample.noise import gumbel_noise
from paths.kernels.sample.torch_impl import mask_top_k_top_p

INF = float("inf")


def inputs(n: int, *, temperature=1.0, top_k=0, top_p=1.0, seeds=None, positions=None) -> SamplingInputs:
    return SamplingInputs(
        temperature=torch.full((n,), temperature),
        top_k=torch.full((n,), top_k, dtype=torch.int32),
        top_p=torch.full((n,), top_p),
        seeds=torch.arange(n) if seeds is None else seeds,
        positions=torch.zeros(n, dtype=torch.int64) if positions is None else positions,
        all_greedy=temperature == 0,
    )


def draw(probs: list[float], n: int = 10_000, **kwargs) -> np.ndarray:
    logits = torch.tensor(probs).log().expand(n, -1)
    return np.bincount(sample(logits, inputs(n, **kwargs)).numpy(), minlength=len(probs)) / n


@pytest.mark.parametrize("rows", [0, 1, 63, 100, 111])
def test_greedy_takes_the_lowest_id_of_a_tie_and_never_nan(rows):
    logits = torch.randn(rows, 50).clamp(max=3.0)
    logits[:, 7] = logits[:, 20] = 5.0
    logits[:, 3] = torch.nan
    assert sample(logits, inputs(rows, temperature=0.0)).tolist() == [7] * rows


def test_mixed_greedy_and_random_rows():
    logits = torch.tensor([[0.0, 1.0, 0.5]]).repeat(200, 1)
    mixed = SamplingInputs(
        temperature=torch.tensor([0.0, 5.0]).repeat(100),
        top_k=torch.zeros(200, dtype=torch.int32),
        top_p=torch.ones(200),
        seeds=torch.arange(200),
        positions=torch.zeros(200, dtype=torch.int64),
        all_greedy=False,
    )
    tokens = sample(logits, mixed)
    assert tokens[0::2].tolist() == [1] * 100
    assert set(tokens[1::2].tolist()) == {0, 1, 2}


def test_distribution_follows_the_softmax():
    probs = [0.5, 0.3, 0.15, 0.05]
    observed = draw(probs, n=20_000)
    expected = np.array(probs)
    chi_square = 20_000 * ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 16.27  # 99.9 % quantile at 3 degrees of freedom


def test_temperature_sharpens():
    assert draw([0.6, 0.4], temperature=0.25)[0] == pytest.approx(0.6**4 / (0.6**4 + 0.4**4), abs=0.02)


def test_fault_149_top_p_is_not_ignored():
    observed = draw([0.6, 0.3, 0.1], top_p=0.7)
    assert observed[2] == 0
    assert observed[1] == pytest.approx(1 / 3, abs=0.02)


def test_top_p_always_keeps_the_most_likely():
    assert draw([0.6, 0.4], top_p=1e-6).tolist() == [1.0, 0.0]


def test_top_k_orders_equal_logits_by_id():
    kept = mask_top_k_top_p(
        torch.zeros(1, 5), top_k=torch.tensor([2], dtype=torch.int32), top_p=torch.ones(1)
    )
    assert kept.tolist() == [[0.0, 0.0, -INF, -INF, -INF]]


def test_top_p_one_keeps_everything():
    logits = torch.randn(63, 2048) * 10
    kept = mask_top_k_top_p(logits, top_k=torch.zeros(63, dtype=torch.int32), top_p=torch.ones(63))
    assert torch.equal(kept, logits)


def test_noise_is_a_function_of_seed_position_and_token_alone():
    seeds, positions = torch.tensor([5, -3, 2**62]), torch.tensor([0, 7, 8191])
    whole = gumbel_noise(seeds=seeds, positions=positions, vocab_size=111)
    one = gumbel_noise(seeds=seeds[1:2], positions=positions[1:2], vocab_size=111)
    assert torch.equal(whole[1:2], one)
    assert torch.isfinite(whole).all()
    assert len(whole.unique()) == whole.numel()


def test_noise_of_neighbouring_positions_is_uncorrelated():
    noise = gumbel_noise(
        seeds=torch.zeros(200, dtype=torch.int64), positions=torch.arange(200), vocab_size=500
    )
    correlation = np.corrcoef(noise[:-1].flatten().numpy(), noise[1:].flatten().numpy())[0, 1]
    assert abs(correlation) < 0.02
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
