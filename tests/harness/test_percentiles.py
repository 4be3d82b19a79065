from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.percentiles import METHOD, percentile, required_samples, shortage


def test_fault_009_percentile_of_small_samples():
    assert METHOD == "linear"
    assert percentile([10, 20, 30], 99) == pytest.approx(29.8)
    assert percentile([10, 20, 30], 50) == 20
    assert percentile([1, 2], 50) == 1.5
    assert [percentile([7], p) for p in (0, 50, 90, 99, 100)] == [7] * 5
    hundred = np.arange(1, 101)
    assert percentile(hundred, 99) == pytest.approx(99.01)
    assert percentile(hundred[::-1], 90) == pytest.approx(90.1)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=111), st.integers(0, 100))
def test_percentile_lies_between_minimum_and_maximum(samples, percent):
    assert min(samples) <= percentile(samples, percent) <= max(samples)


@pytest.mark.parametrize(("percent", "needed"), [(50, 1), (89, 1), (90, 100), (95, 200), (99, 1000)])
def test_fault_011_tail_percentiles_need_samples(percent, needed):
    assert required_samples(percent) == needed
    assert shortage(needed, percent) is None
    if needed > 1:
        assert shortage(needed - 1, percent) == f"n too small (n={needed - 1}, needs {needed})"


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        percentile([], 50)
    with pytest.raises(ValueError, match=r"0\.\.100"):
        percentile([1.0], 101)
    with pytest.raises(ValueError, match="maximum"):
        required_samples(100)
