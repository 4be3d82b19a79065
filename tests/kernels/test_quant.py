"""The power-of-two scale rule, e4m3 rounding and the Hadamard rotation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paths.kernels.quant import hadamard, hadamard_matrix, quantize_block, to_e4m3, ue8m0_scale
from tests.kernels.inputs import randn


def above(value: float) -> float:
    return float(np.nextafter(np.float32(value), np.float32(np.inf)))


@pytest.mark.parametrize(
    ("amax", "exponent"),
    [(0.0, -22), (1e-4, -22), (1.0, -8), (3.5, -7), (7.0, -6), (above(7.0), -5), (448.0, 0), (449.0, 1)],
)
def test_scale_exponents(amax, exponent):
    assert ue8m0_scale(torch.tensor(amax)).item() == 2.0**exponent


@pytest.mark.parametrize("j", range(-12, 13))
def test_scale_at_and_just_above_a_power_of_two(j):
    exact = 448.0 * 2.0**j
    assert ue8m0_scale(torch.tensor(exact)).item() == max(2.0**j, 2.0**-22)
    assert ue8m0_scale(torch.tensor(above(exact))).item() == 2.0 ** (j + 1)


def test_e4m3_rounding_saturation_and_nan():
    values = torch.tensor([448.0, 463.0, 464.0, 1e9, -1e9, math.inf, 2.0**-9, 2.0**-10, -0.0, math.nan])
    stored = to_e4m3(values).float()
    assert stored[:9].tolist() == [448.0, 448.0, 448.0, 448.0, -448.0, 448.0, 2.0**-9, 0.0, 0.0]
    assert math.copysign(1.0, stored[8].item()) == -1.0
    assert stored[9].isnan()


def test_zero_block_has_the_floor_scale_and_zero_values():
    values, scale = quantize_block(torch.zeros(3, 128))
    assert torch.equal(values.float(), torch.zeros(3, 128))
    assert torch.equal(scale, torch.full((3,), 2.0**-22))


def test_quantization_never_saturates_and_stays_within_a_step():
    x = randn(100, 128, seed=1) * torch.logspace(-6, 6, 100)[:, None]
    values, scale = quantize_block(x)
    assert values.float().abs().max() <= 448.0
    error = (values.float() * scale[:, None] - x).abs()
    assert (error <= x.abs() * 2.0**-4 + scale[:, None] * 2.0**-10).all()


def test_nan_spreads_over_its_block_only():
    x = randn(2, 128, seed=2)
    x[0, 5] = math.nan
    values, scale = quantize_block(x)
    read = values.float() * scale[:, None]
    assert read[0].isnan().all()
    assert read[1].isfinite().all()


def test_hadamard_is_sylvesters_and_its_own_inverse():
    matrix = hadamard_matrix(128) * 128**0.5
    assert matrix[3, 5].item() == pytest.approx(-1.0, rel=1e-6)  # 3 & 5 has one bit
    assert matrix[3, 7].item() == pytest.approx(1.0, rel=1e-6)  # 3 & 7 has two
    x = randn(5, 128, seed=3)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=0, atol=1e-5)
    q, k = randn(5, 128, seed=4), randn(5, 128, seed=5)
    torch.testing.assert_close((hadamard(q) * hadamard(k)).sum(-1), (q * k).sum(-1), rtol=1e-4, atol=1e-4)


def test_hadamard_needs_a_power_of_two():
    with pytest.raises(ValueError, match="power of two, got 96"):
        hadamard(torch.zeros(1, 96))
