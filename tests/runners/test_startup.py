"""Start-up: what it reports, that it leaves no trace, and that nothing compiles after it."""

from __future__ import annotations

import pytest
import torch

from paths.engine.transfers import TransferAudit
from paths.kernels.cpp import build
from paths.progress import listening
from tests.engine.mock import request, run_until_idle
from tests.runners.engines import make_engine, make_prompts, serve


@pytest.mark.parametrize(("runner", "waits"), [("V1", 1.0), ("V2", 0.0)])
def test_copies_and_waits_of_whole_steps_are_seen_and_are_those_of_traffic(runner, waits):
    engine = make_engine("dsa", runner)
    effective = engine.effective()
    assert effective.waits_per_step == waits
    assert effective.copies_per_step == (7.0 if runner == "V1" else 2.0)
    prompts = dict(enumerate(make_prompts(6, seed=1)))
    audit = TransferAudit(engine._runner._forward._inputs.device)
    steps = 0
    with audit.of_steps(engine._runner):
        serve(engine, prompts, order=range(6), seed=0, max_tokens=30)
    counters = engine.counters()
    steps = sum(counters.steps.values())
    assert counters.blocking_waits == len(audit.waits) == waits * steps
    assert counters.host_device_copies == len(audit.copies)
    assert counters.output_waits == (0 if runner == "V1" else steps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("graphs", ["none", "full_and_piecewise"])
def test_a_v2_step_on_cuda_never_waits(graphs):
    engine = make_engine("dsa", "V2", graphs=graphs, device="cuda")
    audit = TransferAudit(torch.device("cuda"), errors=True)
    with audit.of_steps(engine._runner):
        serve(engine, dict(enumerate(make_prompts(6, seed=1))), order=range(6), seed=0, max_tokens=30)
    assert (audit.waits, audit.driver_waits) == ([], 0)


def test_warm_up_leaves_no_trace():
    engine = make_engine("dsa", "V2", graphs="full_and_piecewise")
    counters = engine.counters()
    for name, value in vars(counters).items():
        if name not in ("memory_high_water", "cpu_seconds", "cpu_wait_seconds"):
            assert not (sum(value.values()) if isinstance(value, dict) else value), name
    assert not engine.has_work()
    assert engine._scheduler.pool.free == engine._scheduler.pool.capacity
    assert engine._table.free_slots == len(engine._table.live)


def test_graphs_are_reported():
    engine = make_engine("dsa", "V2", graphs="full_and_piecewise")
    effective = engine.effective()
    assert effective.graphs > 0
    assert effective.breaks_per_layer == 1.0
    plain = make_engine("dsa", "V2").effective()
    assert (plain.graphs, plain.breaks_per_layer) == (0, None)


def test_counted_steps_are_those_of_the_graphs():
    engine = make_engine("dsa", "V2", graphs="full_and_piecewise")
    engine.add(request(1, [5] * 50, max_tokens=10, ignore_eos=True))
    engine.add(request(2, [6] * 3, max_tokens=12, ignore_eos=True))
    run_until_idle(engine)
    counters = engine.counters()
    assert counters.steps == {"FULL": 11, "PIECEWISE": 1, "NONE": 0}
    assert counters.tokens_padded > counters.tokens_real == 53 + 9 + 11


def test_small_capacities_warm_up_too():
    engine = make_engine("dsa", "V2", max_num_seqs=1, max_num_batched_tokens=1, max_model_len=8, kv_pages=1)
    engine.add(request(1, [4], max_tokens=7, ignore_eos=True))
    assert len(run_until_idle(engine)[1]) == 7


@pytest.mark.no_poison
def test_nothing_compiles_from_one_request_to_sixty_four():
    engine = make_engine("generic", "V1", compiled=True, max_num_seqs=64, kv_pages=200)
    number = iter(range(10_000))
    for concurrency in (1, 2, 5, 16, 33, 63, 64):
        for length in (1, 2, 9):
            for _ in range(concurrency):
                engine.add(request(next(number), [7] * length, max_tokens=3, ignore_eos=True))
            run_until_idle(engine)
    assert engine.counters().recompiles == 0


def test_a_build_of_kernels_is_announced_and_timed(tmp_path, monkeypatch):
    source = tmp_path / "op" / "cpu.cpp"
    source.parent.mkdir()
    source.write_text("int nothing() { return 0; }\n")
    monkeypatch.setattr(build, "cache_root", lambda: tmp_path / "cache")
    said: list[str] = []
    before = build.build_seconds()
    with listening(said.append):
        build.build_library("announced", [source], build.PORTABLE)
        built = build.build_seconds()
        build.build_library("announced", [source], build.PORTABLE)
    assert said == ["building C++ kernels, once per machine"]
    assert built > before
    assert build.build_seconds() == built  # from the cache the second time
