"""The requests that an engine holds, as columns, so that a step touches arrays and not objects."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from paths.api import Request, SamplingParams, TokenLogprobs
from paths.engine.batch import NULL_BLOCK
from paths.engine.kv_cache import pages_for
from paths.tokenizer import IncrementalDetokenizer


@dataclass(kw_only=True)
class RequestState:
    """What a request carries besides its columns; it survives preemption, when the columns do not."""

    request: Request
    arrival: int
    output_ids: list[int] = field(default_factory=list)  # filled when the request leaves its slot
    prompt_scored: int = 0  # prompt tokens whose log-probs were computed
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    detokenizer: IncrementalDetokenizer | None = None

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def needs_host(self) -> bool:
        """Whether each of its steps is read before the next is launched."""
        p = self.params
        scored = p.logprobs is not None or p.prompt_logprobs is not None
        return scored or self.request.forced_ids is not None

    @property
    def is_plain(self) -> bool:
        """Whether column arithmetic alone can process its tokens."""
        return not (self.params.stop or self.params.stop_token_ids or self.needs_host)


class RequestTable:
    """Running requests by slot. A request keeps its slot from admission to its end or preemption."""

    def __init__(self, *, max_num_seqs: int, max_model_len: int, seed: int) -> None:
        self.max_model_len = max_model_len
        self._seed = seed
        size = max_num_seqs
        self.states: list[RequestState | None] = [None] * size
        self.live = np.zeros(size, dtype=bool)
        self.plain = np.zeros(size, dtype=bool)
        self.needs_host = np.zeros(size, dtype=bool)
        self.tenancy = np.zeros(size, dtype=np.int64)  # counts the requests that have left the slot
        self.request_ids = np.zeros(size, dtype=np.int64)
        self.arrival = np.zeros(size, dtype=np.int64)
        self.token_ids = np.zeros((size, max_model_len), dtype=np.int32)
        self.prompt_len = np.zeros(size, dtype=np.int32)
        # both count a launched step as done; the values of its tokens are known when it has been read
        self.total_len = np.zeros(size, dtype=np.int32)  # tokens: prompt and output
        self.computed = np.zeros(size, dtype=np.int32)  # tokens whose keys are in the cache
        self.num_drafts = np.zeros(size, dtype=np.int32)  # drafts that the runner holds of the slot
        self.max_total = np.zeros(size, dtype=np.int32)
        self.min_total = np.zeros(size, dtype=np.int32)
        self.ignore_eos = np.zeros(size, dtype=bool)
        self.temperature = np.zeros(size, dtype=np.float32)
        self.top_k = np.zeros(size, dtype=np.int32)
        self.top_p = np.ones(size, dtype=np.float32)
        self.seed = np.zeros(size, dtype=np.int64)
        self.num_blocks = np.zeros(size, dtype=np.int32)
        self.block_table = np.full((size, pages_for(max_model_len)), NULL_BLOCK, dtype=np.int32)
        self._free_slots = list(range(size - 1, -1, -1))

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def num_live(self) -> int:
        return len(self.states) - len(self._free_slots)

    def admit(self, state: RequestState) -> int:
        """Give the request a slot and write its columns; tokens generated before a preemption are known."""
        slot = self._free_slots.pop()
        request, params = state.request, state.params
        prompt, output = request.prompt_ids, state.output_ids
        known = len(prompt) + len(output)
        self.states[slot] = state
        self.live[slot] = True
        self.plain[slot] = state.is_plain
        self.needs_host[slot] = state.needs_host
        self.request_ids[slot] = request.request_id
        self.arrival[slot] = state.arrival
        self.token_ids[slot, : len(prompt)] = prompt
        self.token_ids[slot, len(prompt) : known] = output
        self.prompt_len[slot] = len(prompt)
        self.total_len[slot] = known
        self.computed[slot] = 0
        self.num_drafts[slot] = 0  # those from before a preemption are gone
        self.max_total[slot] = len(prompt) + output_limit(request)
        self.min_total[slot] = len(prompt) + params.min_tokens
        self.ignore_eos[slot] = params.ignore_eos or request.forced_ids is not None
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.seed[slot] = params.seed if params.seed is not None else self._default_seed(request.request_id)
        self.num_blocks[slot] = 0
        return slot

    def release(self, slot: int) -> RequestState:
        """Free the slot. The caller returns the pages; the tokens go back to the request's state."""
        state = self.states[slot]
        assert state is not None
        start, end = int(self.prompt_len[slot]), int(self.total_len[slot])
        state.output_ids = self.token_ids[slot, start:end].tolist()
        self.states[slot] = None
        self.live[slot] = False
        self.tenancy[slot] += 1
        self.block_table[slot, : self.num_blocks[slot]] = NULL_BLOCK
        self.num_blocks[slot] = 0
        self._free_slots.append(slot)
        return state

    def state(self, slot: int) -> RequestState:
        state = self.states[slot]
        assert state is not None
        return state

    def _default_seed(self, request_id: int) -> int:
        # crc32 and not hash(): equal in every process
        return zlib.crc32(f"{self._seed}:{request_id}".encode())


def output_limit(request: Request) -> int:
    """Most tokens that the request may produce; forced decode ends with its last given token."""
    limit = request.params.max_tokens
    return limit if request.forced_ids is None else min(limit, len(request.forced_ids))
