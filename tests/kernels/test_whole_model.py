"""Both models, one layer, a prefill and a decode step: the Triton kernels compute what torch computes."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes

pytestmark = pytest.mark.slow  # minutes of interpreting or compiling kernels

pytest.importorskip("triton")

CALL = "from tests.kernels import whole_model\nwhole_model.{}\n"


@pytest.mark.parametrize("path", ["dsa_mrv2", "generic_mrv1"])
def test_triton_equals_torch(path):
    calls = [
        CALL.format(f"assert_triton_equals_torch({path!r}, {layer!r}, {caches!r})")
        for layer, caches in (
            ("experts", "float32"),
            ("experts", "fp8"),
            ("experts", "fp8_ds_mla"),
            ("dense", "float32"),
        )
    ]
    assert_passes("".join(calls))


def test_the_runner_prepares_samples_and_updates_in_triton():
    assert_passes(CALL.format("assert_engine_runs()"))


def test_sampling_parameters_are_found_by_slot():
    assert_passes(CALL.format("assert_engine_samples_alike()"))
