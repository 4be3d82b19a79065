"""The tokens of a step on their way to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.api import TokenLogprobs
from paths.engine.host_memory import TransferCounts

Tokens = npt.NDArray[np.int32]
Scores = Callable[[Tokens], dict[int, TokenLogprobs]]


@dataclass(kw_only=True)
class StepResult:
    """Tokens of one step, readable on the host.

    Of a runner that drafts, tokens are `[N, 1 + mtp]`, −1 behind the last one of each row.
    """

    tokens: Tokens  # [N], of the plan's first N rows
    accepted: Tokens | None = None  # [N] drafts that were accepted; None: the runner does not draft
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # by row


class StepOutput(Protocol):
    """What a runner returns of a step that it launched."""

    def ready(self) -> bool:
        """Whether `get` would return at once."""

    def get(self) -> StepResult:
        """Wait for the step and return its tokens. Once."""


@dataclass(frozen=True, kw_only=True)
class ReadyOutput:
    """Of a runner that waited for its step."""

    result: StepResult

    def ready(self) -> bool:
        return True

    def get(self) -> StepResult:
        return self.result


class OutputCopier:
    """Brings sampled tokens to the host beside the step that follows: a stream of its own, pinned memory.

    `depth` buffers are used in turn, as many as steps may be in flight. mtp: drafts per step; if there are
    any, what is copied of each row are its tokens, −1 behind the last one, and how many they are.
    """

    def __init__(
        self, device: torch.device, *, max_rows: int, depth: int, counts: TransferCounts, mtp: int = 0
    ) -> None:
        self._counts = counts
        shape = (max_rows, mtp + 2) if mtp else (max_rows,)
        self._stream: torch.cuda.Stream | None = None
        self._pinned: list[Tensor] = []
        self._turn = 0
        if device.type != "cpu":
            self._stream = torch.cuda.Stream(device)
            self._pinned = [torch.empty(shape, dtype=torch.int64, pin_memory=True) for _ in range(depth)]

    def start(self, tokens: Tensor, scores: Scores | None) -> AsyncOutput:
        """Begin to copy tokens int64 `[N]`, or `[N, mtp + 2]`, once they are sampled. Does not wait."""
        if self._stream is None:
            return AsyncOutput(tokens, None, self._counts, scores=scores)
        self._turn = (self._turn + 1) % len(self._pinned)
        host = self._pinned[self._turn][: len(tokens)]
        self._stream.wait_stream(torch.cuda.current_stream(tokens.device))
        with torch.cuda.stream(self._stream):
            host.copy_(tokens, non_blocking=True)
            # who waits for it sleeps: a spinning thread would take a processor from the client
            copied = torch.cuda.Event(blocking=True)
            copied.record()
        return AsyncOutput(host, copied, self._counts, scores=scores, source=tokens)


class AsyncOutput:
    """Tokens of a launched step. On a CPU the step is over when its launch returns, and nothing is copied."""

    def __init__(
        self,
        tokens: Tensor,
        copied: torch.cuda.Event | None,
        counts: TransferCounts,
        *,
        scores: Scores | None = None,
        source: Tensor | None = None,
    ) -> None:
        self._tokens = tokens
        self._copied = copied
        self._counts = counts
        self._scores = scores
        self._source = source  # held until the copy is over: its memory would be given to the next step

    def ready(self) -> bool:
        return self._copied is None or self._copied.query()

    def get(self) -> StepResult:
        """Read the tokens, and score them where requests asked for it."""
        if self._copied is not None:
            self._copied.synchronize()
        self._counts.host_device_copies += 1
        self._counts.output_waits += 1
        self._source = None
        tokens = self._tokens.numpy().astype(np.int32)
        accepted = None
        if tokens.ndim == 2:
            tokens, accepted = tokens[:, :-1], tokens[:, -1] - 1
        # who is scored verifies no drafts: its token is the first
        logprobs = {} if self._scores is None else self._scores(tokens if accepted is None else tokens[:, 0])
        return StepResult(tokens=tokens, accepted=accepted, logprobs=logprobs)
