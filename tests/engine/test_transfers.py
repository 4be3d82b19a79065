"""The audit sees every copy and every wait; the runners' own counts are what it sees; V2 steps never wait."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from paths.engine.transfers import TransferAudit
from tests.engine.mock import RUNNERS, make_engine, request, run_until_idle

CPU = torch.device("cpu")
ROW = torch.tensor([3, 0, 7])
HOST = np.arange(3)


def set_by_mask() -> None:
    tensor = ROW.clone()
    tensor[ROW > 2] = 0


WAITING = {
    "item": lambda: ROW[0].item(),
    "cpu": lambda: ROW.cpu(),
    "numpy": lambda: ROW.numpy(),
    "np.asarray": lambda: np.asarray(ROW),
    "tolist": lambda: ROW.tolist(),
    "bool": lambda: bool(ROW[0]),
    "int": lambda: int(ROW[0]),
    "float": lambda: float(ROW[0]),
    "as an index": lambda: [10] * ROW[0],
    "in": lambda: 3 in ROW,
    "format": lambda: f"{ROW[0]}",
    "nonzero": lambda: ROW.nonzero(),
    "where": lambda: torch.where(ROW > 1),
    "mask": lambda: ROW[ROW > 1],
    "masked_select": lambda: ROW.masked_select(ROW > 1),
    "set by mask": set_by_mask,
    "equal": lambda: torch.equal(ROW, ROW),
    "unique": lambda: ROW.unique(),
    "repeat_interleave": lambda: torch.repeat_interleave(ROW, ROW),
}
SENDING = {
    "from_numpy": lambda: torch.from_numpy(HOST),
    "tensor": lambda: torch.tensor([1, 2]),
    "as_tensor": lambda: torch.as_tensor(HOST),
    "new_tensor": lambda: ROW.new_tensor([1]),
    "list as index": lambda: ROW[[0, 1]],
    "array as index": lambda: ROW[HOST],
}


def fill_a_view() -> None:
    ROW.clone()[:2] = 0


ON_THE_DEVICE = {
    "arithmetic": lambda: (ROW * 2 + 1).float().softmax(0),
    "slices": lambda: ROW[1:].clone(),
    "gather": lambda: ROW[ROW.clamp(max=2)],
    "fill of a view": fill_a_view,
    "arange": lambda: torch.arange(4),
    "copy": lambda: torch.empty(3, dtype=torch.int64).copy_(ROW),
    "repeat_interleave of known size": lambda: torch.repeat_interleave(ROW, ROW, output_size=10),
}


def seen(work) -> tuple[int, int]:
    with TransferAudit(CPU).watching() as audit:
        work()
    return len(audit.copies), len(audit.waits)


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WAITING)
def test_reads_wait(name, mode):
    with mode():
        assert seen(WAITING[name]) == (1, 1)


@pytest.mark.parametrize("name", SENDING)
def test_host_data_is_a_copy(name):
    assert seen(SENDING[name]) == (1, 0)


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_what_stays_on_the_device_is_neither(name):
    assert seen(ON_THE_DEVICE[name]) == (0, 0)


@pytest.mark.parametrize("name", ["Event", "Stream"])
def test_waits_for_events_and_streams(name, monkeypatch):
    owner = getattr(torch.cuda, name)
    called = []
    monkeypatch.setattr(owner, "synchronize", lambda self: called.append(name))
    assert seen(lambda: owner.synchronize(None)) == (0, 1)
    assert called == [name]


def test_nothing_is_left_behind():
    before = torch.cuda.Event.synchronize, torch.cuda.synchronize
    seen(lambda: None)
    assert (torch.cuda.Event.synchronize, torch.cuda.synchronize) == before


def busy_engine(runner: str, count: int = 3, **params):
    """With `count` requests that decode."""
    engine = make_engine(runner)
    for i in range(count):
        engine.add(request(i, [1 + i, 2, 3], max_tokens=200, **params))
    for _ in range(3):
        engine.step()
    return engine


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0},
        {"min_tokens": 190, "stop_token_ids": (5,)},
        {"logprobs": 2},
        {"logprobs": -1},
    ],
)
@pytest.mark.parametrize("runner", RUNNERS)
def test_own_counts_are_what_the_audit_sees(runner, params):
    engine = busy_engine(runner, **params)
    engine._read_until(0)
    engine._tally.reset()
    steps = 70  # two of them add a page to each request
    audit = TransferAudit(CPU)
    with audit.of_steps(engine._runner), without_the_model(engine):
        for _ in range(steps):
            engine.step()
        engine._read_until(0)
    counters = engine.counters()
    assert counters.host_device_copies == len(audit.copies)
    assert counters.blocking_waits == len(audit.waits)
    v2 = runner != "V1"
    assert counters.output_waits == (steps if v2 else 0)
    scored = {2: 3, -1: 2}.get(params.get("logprobs"), 0) * 3 * steps  # reads: ids, scores, the chosen one's
    assert counters.blocking_waits == (0 if v2 else steps + scored)
    if v2:
        sent = 3 * steps if scored else 0  # the token that each request chose
        assert counters.host_device_copies == 2 * steps + scored + sent
    else:
        assert counters.host_device_copies >= 7 * steps


@pytest.mark.parametrize("alternatives", [1, -1])
@pytest.mark.parametrize("runner", RUNNERS)
def test_own_counts_of_scored_prompts_are_what_the_audit_sees(runner, alternatives):
    """A prompt in two chunks, each scored when its step is read."""
    engine = make_engine(runner, max_num_batched_tokens=8)
    audit = TransferAudit(CPU)
    engine.add(request(1, list(range(1, 14)), max_tokens=2, prompt_logprobs=alternatives))
    with audit.of_steps(engine._runner), without_the_model(engine):
        run_until_idle(engine)
    counters = engine.counters()
    assert counters.host_device_copies == len(audit.copies)
    assert counters.blocking_waits == len(audit.waits)
    reads = 2 * (3 if alternatives == 1 else 2)
    assert counters.blocking_waits == (3 + reads if runner == "V1" else 0)


@pytest.mark.filterwarnings("default")
def test_other_warnings_of_an_audited_step_are_not_lost(monkeypatch):
    """Of a CUDA device, as far as warnings go; the step itself runs on the CPU."""
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    audit = TransferAudit(torch.device("cuda"))
    with warnings.catch_warnings(record=True) as seen_outside:
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(ZeroDivisionError), audit._asking_the_driver():
            for _ in range(2):
                warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)
            warnings.warn("rope scaling is odd", UserWarning, stacklevel=1)
            warnings.warn("nobody asked for these", DeprecationWarning, stacklevel=1)
            raise ZeroDivisionError
    assert [str(w.message) for w in seen_outside] == ["rope scaling is odd"]
    assert seen_outside[0].filename == __file__
    assert (audit.driver_waits, modes) == (2, ["warn", 0])


class without_the_model:
    """The mock's forward pass asks for many values; what it does is not the runner's."""

    def __init__(self, engine) -> None:
        self._forward = engine._runner._forward

    def __enter__(self):
        model = self._forward._model

        class Still:
            def forward(self, batch, caches):
                with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
                    return model.forward(batch, caches)

        self._forward._model = Still()

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    "slip",
    [
        lambda tokens: tokens[0].item(),
        lambda tokens: tokens.cpu(),
        lambda tokens: tokens[tokens > 0],
        lambda tokens: int(tokens.max()),
    ],
)
def test_a_wait_inside_a_v2_step_is_seen(slip, monkeypatch):
    """What `test_own_counts_are_what_the_audit_sees` guards against: somebody looks at the tokens."""
    engine = busy_engine("V2")
    sample = engine._runner._ops.sample

    def peeking(logits, inputs):
        tokens = sample(logits, inputs)
        slip(tokens)
        return tokens

    monkeypatch.setattr(engine._runner._ops, "sample", peeking)
    audit = TransferAudit(CPU)
    with audit.of_steps(engine._runner), without_the_model(engine):
        engine.step()
    assert len(audit.waits) == 1
    assert engine.counters().blocking_waits == 0


def test_requests_that_need_the_host_are_counted_outside_of_steps():
    engine = make_engine("V2")
    engine.add(request(1, [1, 2, 3], max_tokens=4, logprobs=2, prompt_logprobs=1))
    audit = TransferAudit(CPU)
    with audit.of_steps(engine._runner), without_the_model(engine):
        run_until_idle(engine)
    assert audit.waits == []
    assert engine.counters().output_waits == 4
