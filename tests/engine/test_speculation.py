"""Drafts from scheduling to events, on a model whose drafts and hidden states are checked at every row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paths.api import FinishReason, UserError
from paths.engine.output import StepResult
from paths.engine.postponed import PostponedDrafts
from paths.engine.speculation import Speculation
from paths.engine.verified import check_verification
from paths.kernels.registry import Kernels
from tests.engine.mock import (
    VOCAB,
    MockModel,
    expected_tokens,
    finish_of,
    make_engine,
    request,
    run_until_idle,
    tokens_of,
)

EOS = (7, 11, 19, 23)
RUNNERS = ("V1", "V2")


def right(state: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(state)


def wrong(state: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(state)


def adversary(state: torch.Tensor) -> torch.Tensor:
    """Any token at all."""
    return torch.randint(0, VOCAB, state.shape)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, size=length).tolist()


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("mtp", [1, 3, *(pytest.param(mtp, marks=pytest.mark.slow) for mtp in (2, 5))])
@pytest.mark.parametrize("drafts", [right, wrong, adversary, None])
def test_greedy_answers_are_those_without_drafts(runner, mtp, drafts):
    model = MockModel() if drafts is None else MockModel(drafts)
    engine = make_engine(runner, mtp=mtp, model=model)
    lengths = (1, 62, 63, 64, 100, 111)
    for i, length in enumerate(lengths):
        engine.add(request(i, prompt_of(length, i), max_tokens=17 + i))
    events = run_until_idle(engine)
    for i, length in enumerate(lengths):
        assert tokens_of(events[i]) == expected_tokens(prompt_of(length, i), 17 + i)
    counters = engine.counters()
    assert counters.output_tokens == sum(17 + i for i in range(len(lengths)))
    assert counters.truncated_tokens == 0
    assert counters.verify_steps > 0
    if drafts is right:
        assert counters.accepted_tokens == counters.drafted_tokens
    if drafts is wrong:
        assert counters.accepted_tokens == 0


@pytest.mark.parametrize("runner", [*RUNNERS, "V2 deferred"])
@pytest.mark.parametrize("kv_pages", [64, 9])
def test_random_traffic_with_stops_chunks_and_preemption(runner, kv_pages):
    """Batches grow and shrink, requests are cut off and start again; no draft outlives its request."""
    engine = make_engine(runner, mtp=3, kv_pages=kv_pages, max_num_seqs=6, eos=EOS)
    rng = np.random.default_rng(kv_pages)
    todo, events, started = [], {}, 0
    for i in range(16):
        most = int(rng.integers(1, 90))
        low = int(rng.integers(0, most + 1)) if i % 3 == 0 else 0
        todo.append((prompt_of(int(rng.integers(1, 180)), i), most, low, i % 4 == 0))
    while engine.has_work() or started < len(todo):
        for _ in range(int(rng.integers(0, 3))):
            if started < len(todo):
                prompt, most, low, ignores = todo[started]
                engine.add(request(started, prompt, max_tokens=most, min_tokens=low, ignore_eos=ignores))
                started += 1
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
    plain = make_engine(runner, kv_pages=64, max_num_seqs=6, eos=EOS)
    for i, (prompt, most, low, ignores) in enumerate(todo):
        plain.add(request(i, prompt, max_tokens=most, min_tokens=low, ignore_eos=ignores))
    for i, wanted in run_until_idle(plain).items():
        assert (tokens_of(events[i]), finish_of(events[i])) == (tokens_of(wanted), finish_of(wanted)), i
    counters = engine.counters()
    assert counters.output_tokens == sum(len(tokens_of(e)) for e in events.values())
    assert (counters.preemptions > 0) == (kv_pages == 9)
    assert counters.truncated_tokens > 0
    assert engine._scheduler.pool.free == kv_pages


@pytest.mark.parametrize("runner", RUNNERS)
def test_counters_and_columns_of_a_scripted_acceptance(runner):
    """Steps accept 3, 1, 0 and 3 of three drafts."""
    script = iter([0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    engine = make_engine(
        runner, mtp=3, index_topk=8, model=MockModel(lambda state: torch.full_like(state, next(script)))
    )
    engine.add(request(1, [1, 2, 3, 4], max_tokens=12))
    columns = []
    while engine.has_work():
        step = engine.step()
        columns.append((step.token_counts.tolist(), step.drafted.tolist(), step.accepted.tolist()))
    assert columns == [
        ([1], [0], [0]),
        ([4], [3], [3]),
        ([2], [3], [1]),
        ([1], [3], [0]),
        ([4], [3], [3]),
    ]
    counters = engine.counters()
    assert (counters.verify_steps, counters.drafted_tokens, counters.accepted_tokens) == (4, 12, 7)
    assert (counters.verified_at, counters.accepted_at) == ([4, 4, 4], [3, 2, 2])
    assert (counters.output_tokens, counters.truncated_tokens) == (12, 0)
    assert counters.tokens_real == 4 + 4 * 4  # rows of rejected drafts were computed
    assert (counters.prompt_tokens, counters.decode_tokens) == (4, 11)
    assert counters.decode_tokens_sparse == 7  # rows at positions 8 … 14
    assert counters.uniform_steps == 4


@pytest.mark.parametrize("runner", RUNNERS)
def test_rows_of_rejected_drafts_are_padding(runner):
    """Draft 0, which has the shape of the step, neither writes their keys nor looks at any."""
    seen = []

    class Watched(MockModel):
        def draft(self, batch, hidden, caches, *, step=0):
            seen.append((batch.lengths.tolist(), batch.slot_mapping.tolist()))
            return super().draft(batch, hidden, caches, step=step)

    engine = make_engine(runner, mtp=3, model=Watched(wrong))
    engine.add(request(1, [1, 2, 3], max_tokens=6))
    run_until_idle(engine)
    first = [lengths for lengths, _ in seen[::3]]  # three drafts behind each step
    # behind the last token nothing is drafted
    assert first == [[1, 2, 3], [4, 0, 0, 0], [5, 0, 0, 0], [6, 0, 0], [7, 0]]
    for lengths, slots in seen:
        assert [slot < 0 for slot in slots] == [length == 0 for length in lengths]


def test_drafts_are_made_unless_every_request_of_their_step_left():
    made = []
    drafts = PostponedDrafts()
    drafts.make()
    for released, wanted in (((), True), ((4,), True), ((4, 7, 9), False)):
        drafts.postpone(np.array([7, 4], dtype=np.int32), lambda released=released: made.append(released))
        drafts.make(released)
        assert (released in made) == wanted
        drafts.make()  # once
        assert made.count(released) == wanted


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("most", "drafted"), [(1, [0]), (2, [0, 0]), (3, [0, 1]), (5, [0, 3]), (7, [0, 3, 1])]
)
def test_no_draft_beyond_the_last_token(runner, most, drafted):
    engine = make_engine(runner, mtp=3, model=MockModel(right), max_model_len=20 + most)
    engine.add(request(1, prompt_of(20), max_tokens=most))
    seen = []
    while engine.has_work():
        seen += engine.step().drafted.tolist()
    assert seen == drafted
    assert engine.counters().output_tokens == most


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("at", range(1, 9))
def test_an_end_inside_the_accepted_run_cuts_what_is_behind_it(runner, at):
    tokens = expected_tokens([1, 2, 3], 12)
    assert len(set(tokens)) == len(tokens)
    for params in ({"stop_token_ids": (tokens[at],)}, {}):
        engine = make_engine(runner, mtp=3, model=MockModel(right), eos=[] if params else [tokens[at]])
        engine.add(request(1, [1, 2, 3], max_tokens=12, **params))
        engine.add(request(2, [1, 2, 3], max_tokens=12, ignore_eos=True))
        events = run_until_idle(engine)
        assert tokens_of(events[1]) == tokens[: at + 1]
        assert finish_of(events[1]) is FinishReason.STOP
        assert tokens_of(events[2]) == tokens
        # steps end behind tokens 0, 4, 8, 11
        assert engine.counters().truncated_tokens == (-at) % 4 - (at > 8)


@pytest.mark.parametrize("runner", RUNNERS)
def test_min_tokens_inside_a_verification(runner):
    """A stop token is forbidden in the rows before the minimum and allowed in those behind it."""
    tokens = expected_tokens([1, 2, 3], 12)
    for minimum in range(1, 8):
        answers = []
        for mtp in (0, 3):
            engine = make_engine(runner, mtp=mtp, model=MockModel(right), eos=[tokens[3]])
            engine.add(request(1, [1, 2, 3], max_tokens=12, min_tokens=minimum))
            answers.append(tokens_of(run_until_idle(engine)[1]))
        assert answers[0] == answers[1]
        assert (answers[0] == tokens[:4]) == (minimum <= 3)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("chunk", [1, 5, 7, 64])
def test_chunks_of_a_prompt_fill_the_draft_cache(runner, chunk):
    """The mock refuses a draft whose own cache and given state disagree."""
    model = MockModel(right)
    engine = make_engine(runner, mtp=2, max_num_batched_tokens=chunk, model=model)
    engine.add(request(1, prompt_of(70), max_tokens=30))
    assert tokens_of(run_until_idle(engine)[1]) == expected_tokens(prompt_of(70), 30)
    assert model.drafts >= 70 / chunk
    if chunk > 2:
        assert engine.counters().accepted_tokens == engine.counters().drafted_tokens > 0


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_small_budget_gives_every_request_fewer_drafts(runner):
    engine = make_engine(runner, mtp=3, max_num_batched_tokens=8, model=MockModel(right))
    for i in range(4):
        engine.add(request(i, [i + 1], max_tokens=30))
    engine.step()
    step = engine.step()
    assert step.drafted.tolist() == [1, 1, 1, 1]
    events = run_until_idle(engine)
    assert len(events) == 4


@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_leave_budget_to_requests_that_come_later(runner):
    engine = make_engine(runner, mtp=3, max_num_batched_tokens=8, model=MockModel(right))
    for i in range(2):
        engine.add(request(i, [i + 1], max_tokens=30))
    engine.step()
    assert engine.step().drafted.tolist() == [3, 3]
    engine.add(request(2, [3, 4, 5, 6, 7], max_tokens=30))
    step = engine.step()
    assert step.drafted.tolist() == [1, 1], "two tokens each, and four of the five of the prompt"
    step = engine.step()
    assert step.request_ids.tolist() == [0, 1, 2]
    assert engine.step().drafted.tolist() == [1, 1, 1]
    events = run_until_idle(engine)
    assert tokens_of(events[2])[-1] == expected_tokens([3, 4, 5, 6, 7], 30)[-1]


@pytest.mark.parametrize("runner", RUNNERS)
def test_rows_without_drafts_do_not_make_those_with_drafts_wait(runner):
    engine = make_engine(runner, mtp=3, max_num_batched_tokens=8, model=MockModel(right))
    for i in range(4):
        forced = {"forced_ids": [9] * 30} if i < 2 else {}
        engine.add(request(i, [i + 1], max_tokens=30, **forced))
    engine.step()
    step = engine.step()
    assert sorted(step.request_ids.tolist()) == [0, 1, 2, 3]
    assert step.drafted.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "params", [{"logprobs": 1}, {"prompt_logprobs": 1}, {"forced_ids": [4, 5, 6, 7, 8, 9]}]
)
def test_requests_that_need_the_host_verify_no_drafts(runner, params):
    engine = make_engine(runner, mtp=3, model=MockModel(right))
    engine.add(request(1, [1, 2, 3], max_tokens=8))
    engine.add(request(2, [4, 5], max_tokens=6, **params))
    events: dict[int, list] = {}
    drafted: dict[int, int] = {1: 0, 2: 0}
    while engine.has_work():
        step = engine.step()
        for event, count in zip(step, step.drafted.tolist(), strict=True):
            events.setdefault(event.request_id, []).append(event)
            drafted[event.request_id] += count
    assert tokens_of(events[1]) == expected_tokens([1, 2, 3], 8)
    assert tokens_of(events[2]) == params.get("forced_ids", expected_tokens([4, 5], 6))
    assert drafted[1] > 0 and drafted[2] == 0
    if "logprobs" in params:
        assert [e.detail.logprobs[0].token_id for e in events[2]] == tokens_of(events[2])
    if "prompt_logprobs" in params:
        assert len(events[2][0].detail.prompt_logprobs) == 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_nothing_is_drafted_for_scored_requests_alone(runner):
    model = MockModel(right)
    engine = make_engine(runner, mtp=3, model=model)
    engine.add(request(1, [1, 2, 3], max_tokens=4, logprobs=0))
    run_until_idle(engine)
    assert model.drafts == 0


@pytest.mark.parametrize("runner", RUNNERS)
def test_abort_with_drafts_pending_leaves_the_slot_clean(runner):
    engine = make_engine(runner, mtp=3, max_num_seqs=1)
    engine.add(request(1, [1, 2, 3], max_tokens=50))
    engine.add(request(2, [4, 5], max_tokens=9))
    engine.step()
    engine.step()
    engine.abort(1)
    events = run_until_idle(engine)
    assert finish_of(events[1]) is FinishReason.ABORT
    assert tokens_of(events[2]) == expected_tokens([4, 5], 9)


@pytest.mark.parametrize("runner", RUNNERS)
def test_sampled_answers_do_not_depend_on_the_batch(runner):
    def add(engine):
        engine.add(request(1, prompt_of(20), max_tokens=20, temperature=3.0, seed=11, top_k=50))

    alone = make_engine(runner, mtp=3, max_num_batched_tokens=256)
    add(alone)
    expected = tokens_of(run_until_idle(alone)[1])
    assert 0 < alone.counters().accepted_tokens < alone.counters().drafted_tokens
    crowd = make_engine(runner, mtp=3, max_num_batched_tokens=256)
    for i in range(2, 7):
        temperature = 2.0 if i % 2 else 0.0
        crowd.add(request(i, prompt_of(9 * i, i), max_tokens=30, temperature=temperature, seed=i))
    early = {event.request_id: event for event in crowd.step()}
    add(crowd)
    events = run_until_idle(crowd)
    assert tokens_of(events[1]) == expected
    assert tokens_of([early[2], *events[2]]) == expected_tokens(prompt_of(18, 2), 30)


def test_both_runners_draw_the_same():
    answers = []
    for runner in RUNNERS:
        engine = make_engine(runner, mtp=2, max_num_seqs=3)
        for i in range(9):
            engine.add(request(i, prompt_of(5 + i, i), max_tokens=12, temperature=i % 3, top_p=0.9))
        answers.append({i: tokens_of(e) for i, e in run_until_idle(engine).items()})
    assert answers[0] == answers[1]


class TableModel(MockModel):
    """The distribution of a token, and of its draft, depends on the token before it alone."""

    SIZE = 6
    LOGITS = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 1.5
    DRAFTS = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(2)) * 1.5

    def forward(self, batch, caches):
        return batch.input_ids[:, None].float()

    def draft(self, batch, hidden, caches, *, step=0):
        ids = batch.input_ids if batch.wanted is None else batch.input_ids[batch.wanted.rows]
        return ids[:, None].float()

    def logits(self, hidden):
        return self.LOGITS[hidden[:, 0].long()].clone()

    def draft_logits(self, hidden, *, step=0):
        return self.DRAFTS[hidden[:, 0].long()].clone()


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "params",
    [
        {},
        pytest.param({"top_k": 3, "temperature": 1.5}, marks=pytest.mark.slow),
        pytest.param({"top_p": 0.8}, marks=pytest.mark.slow),
    ],
)
def test_two_tokens_in_a_row_are_distributed_as_plain_sampling_draws_them(runner, params):
    """Chi-square over 20 000 answers: tokens 2 and 3 of each, which drafts decided on."""
    count, size = 20_000, TableModel.SIZE
    params = {"temperature": 1.0, **params}
    engine = make_engine(
        runner, mtp=3, model=TableModel(), max_num_seqs=2000, max_num_batched_tokens=8000, kv_pages=2000
    )
    for i in range(count):
        engine.add(request(i, [i % size], max_tokens=5, **params))
    answers = np.zeros((count, 5), dtype=np.int64)
    filled = np.zeros(count, dtype=np.int64)
    while engine.has_work():
        step = engine.step()
        owner = np.repeat(step.request_ids, step.token_counts)
        first = np.repeat(np.cumsum(step.token_counts) - step.token_counts, step.token_counts)
        answers[owner, filled[owner] + np.arange(len(owner)) - first] = step.token_ids
        filled[step.request_ids] += step.token_counts
    assert (filled == 5).all()
    counters = engine.counters()
    assert 0.2 < counters.accepted_tokens / counters.drafted_tokens < 0.9
    step = transition(TableModel.LOGITS, params)
    start = np.full(size, 1 / size)
    for place in (1, 2, 3):
        expected = count * (start @ np.linalg.matrix_power(step, place))[:, None] * step
        seen = np.zeros((size, size))
        np.add.at(seen, (answers[:, place - 1], answers[:, place]), 1)
        possible = expected > 0
        assert not seen[~possible].any()
        statistic = ((seen - expected)[possible] ** 2 / expected[possible]).sum()
        degrees = int(possible.sum()) - 1
        assert statistic < degrees + 5 * (2 * degrees) ** 0.5, place


def transition(logits: torch.Tensor, params: dict) -> np.ndarray:
    """Probability of each token behind each, after temperature, top-k and top-p."""
    probs = (logits.double() / params["temperature"]).softmax(-1).numpy()
    for row in probs:
        order = np.argsort(-row)
        keep = order[: params.get("top_k") or None]
        mass = row[keep] / row[keep].sum()
        keep = keep[np.cumsum(mass) - mass < params.get("top_p", 1.0)]
        row[np.setdiff1d(order, keep)] = 0
        row /= row.sum()
    return probs


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [1.0, 2.2, 4.0])
def test_forced_acceptance_has_the_length_asked_for(runner, temperature, length):
    engine = make_engine(runner, mtp=3, forced_al=length, model=MockModel(wrong), max_num_seqs=8)
    for i in range(24):
        engine.add(request(i, prompt_of(3, i), max_tokens=60, temperature=temperature))
    run_until_idle(engine)
    counters = engine.counters()
    # near the end of an answer there are fewer drafts
    full = counters.verified_at[2]
    mean = 1 + counters.accepted_tokens / counters.verify_steps
    assert full > 0.9 * counters.verify_steps
    assert abs(mean - length) < 0.25


def test_emitted_drafts_of_a_forced_acceptance_are_the_drafts():
    engine = make_engine("V2", mtp=2, forced_al=3.0, model=MockModel(wrong))
    engine.add(request(1, [1, 2, 3], max_tokens=4))
    tokens = tokens_of(run_until_idle(engine)[1])
    plain = expected_tokens([1, 2, 3], 2)
    assert tokens[0] == plain[0]
    assert tokens[1] == (plain[1] + 1) % VOCAB  # wrong by one, and accepted
    assert len(tokens) == 4


@pytest.mark.parametrize(
    ("mtp", "length", "said"),
    [
        (-1, None, "mtp=-1"),
        (0, 2.0, "mtp=0 drafts nothing"),
        (3, 0.9, "1 … 4"),
        (3, 4.1, "1 … 4"),
        (3, float("nan"), "1 … 4"),
    ],
)
def test_impossible_speculation_is_refused(mtp, length, said):
    with pytest.raises(UserError, match=said):
        Speculation(mtp=mtp, forced_al=length).check()


@pytest.mark.parametrize("length", [1.0, 1.7, 3.3, 4.0])
def test_conditional_rate_gives_the_length(length):
    rate = Speculation(mtp=3, forced_al=length).forced_rate
    assert sum(rate**n for n in range(4)) == pytest.approx(length)


def test_a_bonus_token_counted_as_accepted_is_found(monkeypatch):
    engine = make_engine("V2", mtp=3)
    engine.add(request(1, [1, 2, 3], max_tokens=9))
    engine.step()
    execute = engine._runner.execute

    def miscounts(plan, table):
        output = execute(plan, table)
        get = output.get

        class Miscounted:
            ready = output.ready

            def get(self):
                result = get()
                return StepResult(tokens=result.tokens, accepted=result.accepted + 1)

        return Miscounted()

    monkeypatch.setattr(engine._runner, "execute", miscounts)
    with pytest.raises(RuntimeError, match="one token that is no draft"):
        engine.step()


def test_more_accepted_than_drafted_is_found():
    tokens = np.asarray([[5, 6, -1]], dtype=np.int32)
    result = StepResult(tokens=tokens, accepted=np.asarray([1], np.int32))
    check_verification(result, np.asarray([2], np.int32))
    with pytest.raises(RuntimeError, match="of 0 drafts"):
        check_verification(result, np.asarray([0], np.int32))


def test_a_hole_among_the_tokens_is_found():
    tokens = np.asarray([[5, 6, -1], [5, -1, 7]], dtype=np.int32)
    result = StepResult(tokens=tokens, accepted=np.asarray([1, 1], np.int32))
    with pytest.raises(RuntimeError, match=r"row 1 .* \[5, -1, 7\]"):
        check_verification(result, np.asarray([2, 2], np.int32))


def test_v1_keeps_views_of_uniform_steps_alone():
    """What is kept for each size that a mixed step may have would grow for as long as the engine runs."""
    engine = make_engine("V1", mtp=3, model=MockModel(adversary))
    for i in range(6):
        engine.add(request(i, prompt_of(5 + i, i), max_tokens=20 + 7 * i))
    run_until_idle(engine)
    kept = set(engine._runner._sampling._unread)
    assert kept and all(total in (count, 4 * count) for count, total, _ in kept)


@pytest.mark.parametrize("runner", RUNNERS)
def test_indices_are_checked_in_every_step(runner):
    """As with debug.checks=true: nothing that drafting hands to the ops lies outside of its buffers."""
    engine = make_engine(
        runner, mtp=3, kernels=Kernels(torch.device("cpu"), "torch", checks=True), kv_pages=9
    )
    for i in range(6):
        engine.add(request(i, prompt_of(60 + i, i), max_tokens=70, temperature=i % 2))
    events = run_until_idle(engine)
    assert all(len(tokens_of(e)) == 70 for e in events.values())
    assert engine.counters().preemptions > 0
