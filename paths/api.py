"""The contract between an execution path and everything that drives it. Imports no torch.

A path starts an `Engine`; the harness sees it through an `Endpoint` (see `harness.client`). Every type here
crosses the process boundary, so each is a plain dataclass of numbers, strings and numpy arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

WHOLE_VOCABULARY = -1


class UserError(Exception):
    """A mistake that the user can mend: one line with the value, the allowed values and the remedy."""


class FinishReason(IntEnum):
    """Why a request ended; NONE while it is running."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4

    @property
    def word(self) -> str | None:
        return None if self is FinishReason.NONE else self.name.lower()


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which model: its HF configuration and where its weights come from."""

    name: str
    hf_config: dict[str, Any]
    checkpoint: str  # "dummy" (seeded random weights) or a folder with config.json and safetensors
    tokenizer: str | None = None  # tokenizer.json; needed by stop strings only


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything that decides what an engine is. Its hash is the engine's identity."""

    path: str
    impl: str  # "module:Class" of the ExecutionPath
    model: ModelSource
    options: dict[str, Any] = field(default_factory=dict)  # the path's own switches, from conf/path
    device: str = "cpu"
    gpus: int = 1
    threads: int = 1
    dtype: str = "bf16"
    kv_dtype: str = "auto"
    index_dtype: str = "auto"
    hadamard: bool | None = None  # None: on with an fp8 index cache, off otherwise
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    kv_pages: int = 2048
    mtp: int = 0  # tokens that the MTP head drafts after each step; 0: no speculation
    mtp_forced_al: float | None = None  # accept by chance up to this mean length, whatever the drafts are
    seed: int = 0
    debug: dict[str, Any] = field(default_factory=dict)

    def identity(self) -> str:
        """First 16 hex digits of SHA-256 over the canonical JSON of all fields."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives per output token; 0: the token alone; -1: whole vocabulary
    prompt_logprobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request as token ids. `forced_ids` are fed through decode instead of sampled tokens, and scored."""

    request_id: int
    prompt_ids: npt.NDArray[np.int32]
    params: SamplingParams
    forced_ids: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Log-probability (natural log, float32) of one token under the untempered distribution."""

    token_id: int
    logprob: float
    top_ids: npt.NDArray[np.int32]  # [n], best first; [V] in id order when the whole vocabulary was asked
    top_logprobs: npt.NDArray[np.float32]  # [n]


@dataclass(frozen=True, kw_only=True)
class EventDetail:
    """What only some requests ask for; attached to an event by its row."""

    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per new token
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # one per prompt token, the first is None
    text: str | None = None  # whole output cut before the stop string; last event, requests with `stop` only
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """New tokens of one request that became readable on the host at `time_ns` (perf_counter_ns)."""

    request_id: int
    token_ids: npt.NDArray[np.int32]
    finish_reason: FinishReason
    time_ns: int
    detail: EventDetail | None = None


@dataclass(frozen=True, kw_only=True)
class StepEvents(Sequence[TokenEvent]):
    """All events of one engine step, as columns: 1024 requests are four arrays, not 1024 objects."""

    time_ns: int
    request_ids: npt.NDArray[np.int64]  # [E]
    token_counts: npt.NDArray[np.int32]  # [E]
    token_ids: npt.NDArray[np.int32]  # [sum(token_counts)]
    finish: npt.NDArray[np.int8]  # [E] FinishReason
    drafted: npt.NDArray[np.int32] | None = None  # [E] drafts that were verified for it; None: no speculation
    accepted: npt.NDArray[np.int32] | None = None  # [E] of these, before the answer was cut
    details: dict[int, EventDetail] = field(default_factory=dict)  # event row → detail

    def __len__(self) -> int:
        return len(self.request_ids)

    def __iter__(self) -> Iterator[TokenEvent]:
        ends = np.cumsum(self.token_counts)
        for row in range(len(self)):
            yield self._event(row, int(ends[row]))

    @overload
    def __getitem__(self, index: int) -> TokenEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenEvent]: ...
    def __getitem__(self, index: int | slice) -> TokenEvent | Sequence[TokenEvent]:
        if isinstance(index, slice):
            return list(self)[index]
        row = range(len(self))[index]
        return self._event(row, int(self.token_counts[: row + 1].sum()))

    def _event(self, row: int, end: int) -> TokenEvent:
        return TokenEvent(
            request_id=int(self.request_ids[row]),
            token_ids=self.token_ids[end - int(self.token_counts[row]) : end],
            finish_reason=FinishReason(int(self.finish[row])),
            time_ns=self.time_ns,
            detail=self.details.get(row),
        )


@dataclass(kw_only=True)
class Counters:
    """Running totals since start-up; the harness takes differences around its window."""

    steps: dict[str, int] = field(default_factory=lambda: {"FULL": 0, "PIECEWISE": 0, "NONE": 0})
    uniform_steps: int = 0  # of these, where every request computed 1 + mtp tokens: what FULL graphs are for
    tokens_real: int = 0
    tokens_padded: int = 0
    prompt_tokens: int = 0  # prompt rows computed, recomputation after a preemption included
    decode_tokens: int = 0  # rows whose input was an output token
    output_tokens: int = 0  # tokens emitted
    decode_tokens_sparse: int = 0  # decode tokens whose context is longer than index_topk
    verify_steps: int = 0  # verifications of at least one draft, one for each request and step
    drafted_tokens: int = 0  # drafts verified
    accepted_tokens: int = 0  # of these; the token that ends a verification is not a draft
    accepted_at: list[int] = field(default_factory=list)  # [mtp] verifications that accepted draft 1, 2, …
    verified_at: list[int] = field(default_factory=list)  # [mtp] verifications that had a draft 1, 2, …
    truncated_tokens: int = 0  # accepted or bonus tokens behind a stop or a length limit: not emitted
    recompiles: int = 0  # after warm-up
    graph_misses: dict[str, int] = field(default_factory=dict)  # why a step ran below its mode → steps
    host_device_copies: int = 0  # either direction, inside steps
    blocking_waits: int = 0  # inside a step: the host stood still for the device
    output_waits: int = 0  # reads of a step's tokens, outside of steps
    preemptions: int = 0
    nan_logit_rows: int = 0  # sampled rows whose logits held a NaN: must stay 0
    prefix_cache_hits: int = 0  # tokens; the built-in engine has no prefix cache, so this proves 0
    # None: not known
    memory_high_water: int | None = None  # bytes, of the process on CPU and of the device on a GPU
    cpu_seconds: float | None = None  # user + system time of the engine's processes
    cpu_wait_seconds: float | None = None  # time that its threads were ready to run and had no processor


@dataclass(frozen=True, kw_only=True)
class StartupReport:
    """Seconds and bytes that start-up cost."""

    load_s: float
    compile_s: float
    capture_s: float
    graphs: int
    graph_memory_bytes: int = 0
    kernel_build_s: float = 0.0  # C++ kernels, at the first start on a machine; not in load_s
    kv_cache_bytes: int
    weight_bytes: int
    kv_tokens: int  # capacity of the cache


@dataclass(frozen=True, kw_only=True)
class Effective:
    """What the engine ran, derived from what executed, never copied from the request."""

    path: str
    model_class: str
    model_module: str
    runner: str
    compile_mode: str
    graph_modes: dict[str, int]  # steps by graph mode
    kernels: dict[str, dict[str, int]]  # op → implementation → calls
    dtype: str
    kv_dtype: str
    index_dtype: str
    hadamard: bool
    kv_bytes_per_token: int  # main and index caches, all layers
    k_scale_origin: str  # "checkpoint", "default-1.0" or "none" (the cache has no per-tensor scale)
    device: str
    threads: int
    pid: int
    graphs: int = 0  # captured
    mtp: int = 0  # drafts per verification that the engine runs
    mtp_forced_al: float | None = None  # drafts are accepted by chance up to this mean length
    # forward passes of drafts by graph mode; drafts that are replayed together are one
    draft_modes: dict[str, int] = field(default_factory=dict)
    breaks_per_layer: float | None = None  # of one pass in a PIECEWISE graph; None: none was captured
    copies_per_step: float | None = None  # host-device copies seen by an audit of whole steps at start-up
    waits_per_step: float | None = None  # blocking waits seen by it
    fallbacks: tuple[str, ...] = ()  # what ran in place of the first choice; any makes a cell FALLBACK
    notes: tuple[str, ...] = ()  # anything else that a reader of the numbers must know
    code_root: str | None = None  # the folder that `paths` was imported from; the worker fills it in


@dataclass(frozen=True, kw_only=True)
class KernelChoice:
    """Which implementation of an op would run, and why not a better one."""

    impl: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a path would run on a platform, said without starting it."""

    summary: str
    model: str
    runner: str
    compile_mode: str
    graph_mode: str
    kernels: dict[str, KernelChoice]


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """Why a path cannot run here."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The hardware that a path is asked about."""

    device: str  # "cpu", "cuda", "rocm", "xpu"
    capability: tuple[int, int] | None = None
    compiler: bool = False  # a C++ compiler is on the PATH
    python_headers: bool = False  # Python.h is installed: torch.compile on a CPU needs it


class Engine(Protocol):
    """A running engine. Single-threaded: whoever owns it calls `step` in a loop."""

    def warm_up(self) -> StartupReport:
        """Load, compile, capture. After it no step compiles."""

    def add(self, request: Request) -> None:
        """Queue a request. Raises UserError for one that can never run (too long, ids out of range)."""

    def refuse(self, request_id: int, error: str) -> None:
        """Report a request that `add` did not take as an ERROR event of the next step."""

    def step(self) -> StepEvents:
        """Run one step and return the tokens that are readable on the host now."""

    def abort(self, request_id: int) -> None:
        """End a request; its last event has reason ABORT. Unknown or finished ids are ignored."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def counters(self) -> Counters: ...

    def effective(self) -> Effective: ...

    def close(self) -> None: ...


class ExecutionPath(Protocol):
    """Model code, runner, graph mode and kernels under one name."""

    name: str

    def describe(self, platform: Platform, config: EngineConfig) -> Description | Unsupported:
        """Say what would run and why. Instant, imports no torch. Raises UserError for bad options."""

    def start(self, config: EngineConfig) -> Engine:
        """Build the engine in this process. Raises UserError for an impossible configuration."""
