"""Both built-in paths, as engines, against transformers: prefill in any chunking and forced decode."""

from __future__ import annotations

import numpy as np
import pytest

from harness.hardware import detect_platform
from paths import registry
from paths.api import EngineConfig, ModelSource
from paths.models.config import read_hf_config
from tests.engine.mock import request, run_until_idle
from tests.oracle import oracle_logprobs, save_checkpoint

IMPLS = {
    "generic_mrv1": "paths.generic_mrv1.path:GenericMrv1Path",
    "dsa_mrv2": "paths.dsa_mrv2.path:DsaMrv2Path",
}
TOLERANCE = 1e-4
# index_topk is 8: contexts from far below to far above it, in one batch
PROMPT_LENGTHS = (3, 63, 17, 1, 100, 9)
FORCED_LENGTHS = (25, 5, 50, 40, 1, 9)


@pytest.fixture(scope="module", params=["v32", "glm_shared"])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, save_checkpoint(request.param, folder)


@pytest.fixture(scope="module", params=IMPLS)
def engine(request, checkpoint):
    folder, _ = checkpoint
    engine = registry.load(IMPLS[request.param]).start(
        EngineConfig(
            path=request.param,
            impl=IMPLS[request.param],
            model=ModelSource(name="oracle", hf_config=read_hf_config(folder), checkpoint=str(folder)),
            dtype="float32",
            hadamard=False,
            max_num_seqs=16,
            max_num_batched_tokens=256,
            max_model_len=256,
            kv_pages=40,
        )
    )
    engine.warm_up()
    yield engine
    assert described(engine) == {
        op: impl for op, calls in engine.effective().kernels.items() for impl, n in calls.items() if n
    }
    assert engine.counters().recompiles == 0
    engine.close()


def described(engine) -> dict[str, str]:
    """What `cmd=list` would say of the engine's path."""
    path = registry.load(IMPLS[engine.effective().path])
    config = EngineConfig(path=path.name, impl="", model=ModelSource(name="", hf_config={}, checkpoint=""))
    description = path.describe(detect_platform("cpu"), config)
    return {op: choice.impl for op, choice in description.kernels.items()}


@pytest.mark.parametrize("chunk", [1, 7, 64, 256])
def test_logprobs_of_prefill_and_forced_decode(engine, checkpoint, chunk):
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
