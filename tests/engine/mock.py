"""A model whose next token depends on every key that it should see, and an engine around it.

Token t+1 = (Σ over visible positions s of (s + 1) × id_s) mod V, read back through the paged cache: a wrong
slot, block table, length or position changes the output. Its drafts are right two times in three; they come
from a cache of their own and are checked against the state that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from paths.api import Counters, Effective, FinishReason, Request, SamplingParams, StartupReport, TokenEvent
from paths.dsa_mrv2.runner import RunnerV2
from paths.engine.admission import AdmissionRules
from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.core import EngineCore
from paths.engine.kv_cache import BlockPool
from paths.engine.requests import RequestTable
from paths.engine.scheduler import Scheduler
from paths.engine.speculation import Speculation
from paths.engine.static_inputs import DraftInputs, StaticInputs
from paths.engine.tally import Tally
from paths.generic_mrv1.runner import RunnerV1
from paths.graphs.config import GraphConfig
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels
from paths.tokenizer import Tokenizer

VOCAB = 263
RUNNERS = {"V1": RunnerV1, "V2": RunnerV2, "V2 deferred": RunnerV2}  # deferred: tokens are read a step late


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    known = [int(i) for i in prompt]
    for _ in range(count):
        known.append(sum((s + 1) * i for s, i in enumerate(known)) % VOCAB)
    return known[len(prompt) :]


class MockConfig:
    """What drafting asks of a model's configuration."""

    def mtp_layers(self, mtp: int) -> int:
        return 1

    def reuses_selection(self, step: int) -> bool:
        return False


class MockModel:
    hadamard = False
    max_model_len = 512

    def __init__(self, wrong: Callable[[Tensor], Tensor] = lambda state: state % 3 == 0) -> None:
        self.wrong = wrong  # which drafts are off by one, by state [N]
        self.drafts = 0

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        flat = caches[0].kv.view(-1)
        live = batch.slot_mapping >= 0
        flat[batch.slot_mapping[live]] = batch.input_ids[live].float()
        hidden = torch.full((batch.num_tokens, 1), torch.nan)
        for row in range(batch.num_tokens):
            length = int(batch.lengths[row])
            assert length == int(batch.positions[row]) + 1
            table = batch.block_table[int(batch.req_rows[row])]
            seen = torch.arange(length)
            slots = table[seen // 64].long() * 64 + seen % 64
            hidden[row] = ((seen + 1) * flat[slots].double()).sum() % VOCAB
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits = torch.full((len(hidden), VOCAB), -4.0)
        return logits.scatter_(1, hidden.long(), 4.0)

    def draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int = 0
    ) -> Tensor:
        """The state behind one more token: that of the row, and again from the tokens in the cache."""
        self.drafts += 1
        main, flat = caches[0].kv.view(-1), caches[1].kv.view(-1)
        live = batch.slot_mapping >= 0
        flat[batch.slot_mapping[live]] = batch.input_ids[live].float()
        assert torch.equal(batch.lengths > 0, live)
        rows = torch.arange(batch.num_tokens) if batch.wanted is None else batch.wanted.rows
        queries = batch.queries
        states = torch.zeros(queries.num_tokens, 1)
        for query, row in enumerate(rows.tolist()):
            length = int(queries.lengths[query])
            if length == 0:
                continue
            assert bool(live[row])
            assert queries.req_rows[query] == batch.req_rows[row]
            assert length == int(queries.positions[query]) + 1 == int(batch.positions[row]) + 1
            assert length <= min(queries.max_length, self.max_model_len)
            table = queries.block_table[int(queries.req_rows[query])]
            seen = torch.arange(length)
            slots = table[seen // 64].long() * 64 + seen % 64
            assert bool((slots >= 64).all()), "a key in the null block"
            state = (main[slots[0]].double() + ((seen + 2) * flat[slots].double()).sum()) % VOCAB
            assert float(state) == (float(hidden[row]) + (length + 1) * int(batch.input_ids[row])) % VOCAB
            states[query] = state
        return states

    def draft_logits(self, hidden: Tensor, *, step: int = 0) -> Tensor:
        return self.logits((hidden + self.wrong(hidden)) % VOCAB)

    def num_draft_breaks(self) -> int:
        raise AssertionError("the mock model is not captured")

    draft_context = bind_draft = num_draft_breaks


def make_engine(
    runner: str,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 512,
    kv_pages: int = 64,
    eos: Iterable[int] = (),
    index_topk: int = 8,
    tokenizer: Tokenizer | None = None,
    kernels: Kernels | None = None,
    mtp: int = 0,
    forced_al: float | None = None,
    model: MockModel | None = None,
) -> EngineCore:
    table = RequestTable(max_num_seqs=max_num_seqs, max_model_len=max_model_len, seed=0)
    scheduler = Scheduler(
        table=table, pool=BlockPool(kv_pages + 1), max_num_batched_tokens=max_num_batched_tokens, mtp=mtp
    )
    caches = [
        LayerCache(
            kv=torch.full((kv_pages + 1, 64, 1), torch.nan),
            kv_dtype="float32",
            k_scale=torch.tensor(1.0),
            index=None,
            index_dtype="float32",
        )
        for _ in range(2)
    ]
    eos = list(eos)
    model = model or MockModel()
    inputs = StaticInputs(
        max_tokens=max_num_batched_tokens,
        max_reqs=max_num_seqs,
        max_blocks=table.block_table.shape[1],
        index_topk=index_topk,
        device=torch.device("cpu"),
    )
    forward = GraphedForward(model=model, caches=caches, inputs=inputs, config=GraphConfig())
    drafts = None
    if mtp:
        drafts = GraphedDrafts(
            model=model,
            model_config=MockConfig(),
            mtp=mtp,
            caches=caches,
            inputs=DraftInputs(inputs, hidden_size=1, dtype=torch.float32),
            config=GraphConfig(),
        )
    built = RUNNERS[runner](
        model=model,
        forward=forward,
        inputs=inputs,
        kernels=kernels or Kernels(torch.device("cpu"), "torch"),
        table=table,
        eos_token_ids=eos,
        device=torch.device("cpu"),
        speculation=Speculation(mtp=mtp, forced_al=forced_al),
        drafts=drafts,
    )
    return EngineCore(
        scheduler=scheduler,
        runner=built,
        rules=AdmissionRules(
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            kv_pages=kv_pages,
            has_tokenizer=tokenizer is not None,
        ),
        eos_token_ids=eos,
        tokenizer=tokenizer,
        tally=Tally(
            scheduler=scheduler,
            runner=built,
            graph_counts=forward.counts,
            recompiles=lambda: 0,
            index_topk=index_topk,
            mtp=mtp,
        ),
        warm_up=_no_warm_up,
        describe_effective=_no_effective,
        defer_output=runner == "V2 deferred",
    )


def request(request_id: int, prompt: Sequence[int], **params: object) -> Request:
    forced = params.pop("forced_ids", None)
    params.setdefault("max_tokens", 5)
    return Request(
        request_id=request_id,
        prompt_ids=np.asarray(prompt, dtype=np.int32),
        params=SamplingParams(**params),
        forced_ids=None if forced is None else np.asarray(forced, dtype=np.int32),
    )


def run_until_idle(engine: EngineCore, limit: int = 10_000) -> dict[int, list[TokenEvent]]:
    events: dict[int, list[TokenEvent]] = {}
    for _ in range(limit):
        if not engine.has_work():
            return events
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
    raise AssertionError(f"engine still busy after {limit} steps")


def tokens_of(events: Sequence[TokenEvent]) -> list[int]:
    return [int(i) for event in events for i in event.token_ids]


def finish_of(events: Sequence[TokenEvent]) -> FinishReason:
    assert all(e.finish_reason is FinishReason.NONE for e in events[:-1])
    return events[-1].finish_reason


def _no_warm_up(engine: EngineCore) -> StartupReport:
    raise AssertionError("the mock engine has no start-up")


def _no_effective(counters: Counters) -> Effective:
    raise AssertionError("the mock engine has no effective settings")
