"""Both models, one layer, a prefill and a decode step: the Triton kernels compute what torch computes."""

from __future__ import annotations

import pytest

from tests.kernels.triton_child import assert_passes

pytest.importorskip("triton")

CALL = "from tests.kernels import whole_model\nwhole_model.{}\n"


@pytest.mark.parametrize("path", ["dsa_mrv2", pytest.param("generic_mrv1", marks=pytest.mark.slow)])
def test_triton_equals_torch_in_float32(path):
    assert_passes(CALL.format(f"assert_triton_equals_torch({path!r}, 'dense', 'float32')"))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["dsa_mrv2", "generic_mrv1"])
def test_triton_equals_torch(path):
    calls = [
        CALL.format(f"assert_triton_equals_torch({path!r}, {layer!r}, {caches!r})")
        for layer, caches in (
            ("experts", "float32"),
            ("experts", "fp8"),
            ("experts", "fp8_ds_mla"),
        )
    ]
    assert_passes("".join(calls))


@pytest.mark.slow
def test_the_runner_prepares_samples_and_updates_in_triton():
    assert_passes(CALL.format("assert_engine_runs()"))


@pytest.mark.slow
def test_sampling_parameters_are_found_by_slot():
    assert_passes(CALL.format("assert_engine_samples_alike()"))


def test_a_v2_step_runs_no_torch_but_dense_products():
    assert_passes("from tests.kernels import eager_torch\neager_torch.assert_only_dense_gemms()\n")
