"""Every built-in path, as an engine, against transformers: prefill in any chunking and forced decode."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import numpy as np
import pytest

from harness.hardware import detect_platform
from paths import registry
from paths.api import EngineConfig, ModelSource
from paths.models.config import read_hf_config
from tests.engine.mock import request, run_until_idle
from tests.harness.cells import make_cells
from tests.oracle import oracle_logprobs, save_checkpoint

ENDS = ("generic_mrv1", "dsa_mrv2")
BETWEEN = (
    "generic_mrv2",
    "generic_mrv2_eager",
    "generic_eager",
    "dsa_mrv1",
    "dsa_mrv2_full",
    "dsa_mrv2_eager",
)
TOLERANCE = 1e-4
# index_topk is 8: contexts from far below to far above it, in one batch
PROMPT_LENGTHS = (3, 63, 17, 1, 100, 9)
FORCED_LENGTHS = (25, 5, 50, 40, 1, 9)


@pytest.fixture(scope="module", params=["v32", pytest.param("glm_shared", marks=pytest.mark.slow)])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_checkpoint(request.param, folder)


@pytest.fixture(scope="module")
def oracle_v32(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arms")
    return folder, save_checkpoint("v32", folder)


def arm_config(arm, folder) -> EngineConfig:
    """The arm as its YAML composes it, on a small oracle model."""
    path = make_cells(f"+path={arm}")[0].config.path
    return EngineConfig(
        path=arm,
        impl=path.impl,
        options=path.options,
        model=ModelSource(name="oracle", hf_config=read_hf_config(folder), checkpoint=str(folder)),
        dtype="float32",
        hadamard=False,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=256,
        kv_pages=40,
    )


@contextmanager
def running(config):
    path = registry.load(config.impl)
    engine = path.start(config)
    engine.warm_up()
    yield engine
    description = path.describe(detect_platform("cpu"), config)
    effective = engine.effective()
    assert {op: choice.impl for op, choice in description.kernels.items()} == {
        op: impl for op, calls in effective.kernels.items() for impl, n in calls.items() if n
    }
    assert description.model == f"{effective.model_module}:{effective.model_class}"
    assert (description.runner, description.compile_mode) == (effective.runner, effective.compile_mode)
    assert engine.counters().recompiles == 0
    engine.close()


@pytest.fixture(scope="module", params=ENDS)
def engine(request, checkpoint):
    with running(arm_config(request.param, checkpoint[0])) as engine:
        yield engine


@pytest.mark.parametrize("chunk", [1, 7, 64, 256])
def test_logprobs_of_prefill_and_forced_decode(engine, checkpoint, chunk):
    check_against_oracle(engine, checkpoint, chunk)


@pytest.mark.parametrize("arm", BETWEEN)
def test_arms_between_the_ends(arm, oracle_v32):
    with running(arm_config(arm, oracle_v32[0])) as engine:
        check_against_oracle(engine, oracle_v32, 64)


@pytest.mark.parametrize("arm", ["dsa_mrv2", "dsa_mrv1", "generic_mrv2_eager"])
def test_debug_checks_find_nothing_in_a_healthy_engine(arm, oracle_v32):
    config = dataclasses.replace(arm_config(arm, oracle_v32[0]), debug={"checks": True})
    with running(config) as engine:
        check_against_oracle(engine, oracle_v32, 64)


def check_against_oracle(engine, checkpoint, chunk):
    engine._scheduler.max_num_batched_tokens = chunk
    rng = np.random.default_rng(chunk)
    _, model = checkpoint
    vocab = model.config.vocab_size
    jobs = {
        1000 * chunk + i: (rng.integers(3, vocab, p).tolist(), rng.integers(3, vocab, f).tolist())
        for i, (p, f) in enumerate(zip(PROMPT_LENGTHS, FORCED_LENGTHS, strict=True))
    }
    for request_id, (prompt, forced) in jobs.items():
        engine.add(
            request(
                request_id, prompt, max_tokens=len(forced), forced_ids=forced, logprobs=-1, prompt_logprobs=-1
            )
        )
    events = run_until_idle(engine)
    for request_id, (prompt, forced) in jobs.items():
        expected = oracle_logprobs(model, prompt + forced).numpy()
        mine = events[request_id]
        scored = [s for s in mine[0].detail.prompt_logprobs if s is not None]
        scored += [s for event in mine for s in event.detail.logprobs]
        assert [s.token_id for s in scored] == (prompt + forced)[1:]
        actual = np.stack([s.top_logprobs for s in scored])
        error = np.abs(actual - expected[:-1]).max()
        assert error < TOLERANCE, f"prompt {len(prompt)}, forced {len(forced)}: {error:.2e}"
