"""`bench`: the arithmetic of its table, and that what it would time is accepted by the launchers."""

from __future__ import annotations

import pytest

from paths.kernels.tools.roofline import PEAKS, Cost, peak_of, speed

pytest.importorskip("triton")
from paths.kernels.__main__ import main
from paths.kernels.describe import OPS
from paths.kernels.tools.bench import trace
from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.workloads import workloads


def test_roofline_arithmetic():
    peak = PEAKS["H100"]
    memory_bound = Cost(bytes=3.35e9, flops=1e9)
    assert memory_bound.least_seconds(peak) == pytest.approx(1e-3) and memory_bound.bound(peak) == "memory"
    compute_bound = Cost(bytes=1e6, flops=1979e9, operand="fp8")
    assert compute_bound.least_seconds(peak) == pytest.approx(1e-3) and compute_bound.bound(peak) == "compute"
    found = speed(memory_bound, 2e-3, peak)
    assert found.share == pytest.approx(0.5)
    assert found.gigabytes_per_second == pytest.approx(1675) and found.teraflops == pytest.approx(0.5)
    assert speed(memory_bound, 2e-3, None).share is None
    assert PEAKS["A100"].compute("fp8") == PEAKS["A100"].bf16


def test_devices_are_recognised_by_name():
    assert peak_of("NVIDIA H100 80GB HBM3") is PEAKS["H100"]
    assert peak_of("NVIDIA H100 PCIe") is PEAKS["H100 PCIe"]
    assert peak_of("NVIDIA GeForce RTX 4090") is None


@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: f"{workload.op}-{workload.label}")
def test_workloads_are_accepted_by_their_launchers(workload):
    assert trace(workload), "launches nothing"
    assert workload.cost.bytes > 0


def test_every_op_on_triton_has_a_workload():
    measured = {workload.op for workload in workloads()}
    assert measured == {op.name for op in find_ops() if "triton" in op.implementations}


def test_every_preparation_is_timed():
    timed = {workload.function for workload in workloads() if workload.op == "prepare_inputs"}
    assert timed == {op for op, folder in OPS.items() if folder == "prepare_inputs"}


def test_bytes_of_a_norm_by_hand():
    cost = next(workload.cost for workload in workloads() if workload.op == "add_rms_norm")
    assert cost.bytes == 4 * 4096 * 7168 * 2


def test_dry_run_shows_bytes_and_launches(capsys):
    assert main(["bench", "--op", "rms_norm", "--dry-run", "H200"]) == 0
    out = capsys.readouterr().out
    assert "117.4" in out and "24.5" in out and "memory" in out
