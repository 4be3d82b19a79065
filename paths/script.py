"""What the path `scripted` emits, and when: its options, and the script of one request. Imports no torch."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paths.api import WHOLE_VOCABULARY, FinishReason, Request, TokenLogprobs, UserError

_FINISH = {"length": FinishReason.LENGTH, "stop": FinishReason.STOP, "error": FinishReason.ERROR}
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Script:
    """When a request emits how much: event e at `at_ns[e]` brings its total to `total[e]` tokens."""

    at_ns: npt.NDArray[np.int64]  # [E], from arrival
    total: npt.NDArray[np.int64]  # [E]
    finish: FinishReason
    drafted: npt.NDArray[np.int64]  # [E] drafts that the event verified
    accepted: npt.NDArray[np.int64]  # [E] of these, before the answer was cut


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one request gets: its script, and tokens that follow from prompt and position."""

    script: Script
    first: int  # the token at position 0; position i has first + i
    forced: npt.NDArray[np.int32] | None  # given instead
    alternatives: int | None  # log-probabilities asked for; None: none
    vocab_size: int
    other_every: int
    sharpness: float

    def wanted(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """The tokens that it would choose at positions start … stop - 1."""
        position = np.arange(start, stop, dtype=np.int64)
        other = (position + 1) % self.other_every == 0 if self.other_every else np.zeros(len(position), bool)
        return ((self.first + position + other) % self.vocab_size).astype(np.int32)

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        return self.wanted(start, stop) if self.forced is None else self.forced[start:stop]

    def logprobs(self, start: int, stop: int) -> tuple[TokenLogprobs, ...] | None:
        """Geometric in the rank; the token of rank r is the best one + r."""
        if self.alternatives is None:
            return None
        n = self.vocab_size if self.alternatives == WHOLE_VOCABULARY else self.alternatives
        decay = math.log(2) * self.sharpness
        falls = np.arange(self.vocab_size) * -decay
        falls -= math.log(np.exp(falls).sum())
        found = []
        for best, token in zip(self.wanted(start, stop), self.tokens(start, stop), strict=True):
            ids = ((int(best) + np.arange(n)) % self.vocab_size).astype(np.int32)
            top = falls[:n].astype(np.float32)
            if self.alternatives == WHOLE_VOCABULARY:
                order = np.argsort(ids)
                ids, top = ids[order], top[order]
            rank = (int(token) - int(best)) % self.vocab_size
            found.append(
                TokenLogprobs(token_id=int(token), logprob=float(falls[rank]), top_ids=ids, top_logprobs=top)
            )
        return tuple(found)


class ScriptedRequest(BaseModel):
    """An explicit script: [[ms, tokens], …] and how it ends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    events: list[tuple[Annotated[float, Field(ge=0)], Annotated[int, Field(ge=0)]]]
    finish: Literal["length", "stop", "error"]


class ScriptOptions(BaseModel):
    """Validated options of the path; `parse` raises UserError."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    first_ms: float = Field(20.0, ge=0, allow_inf_nan=False)
    gap_ms: float = Field(10.0, ge=0, allow_inf_nan=False)
    tokens_per_event: list[Annotated[int, Field(ge=1)]] = Field([1], min_length=1)
    fail_every: int = Field(0, ge=0)
    empty_every: int = Field(0, ge=0)
    early_stop_every: int = Field(0, ge=0)
    requests: list[ScriptedRequest] = []
    accepted: list[Annotated[int, Field(ge=0)]] = Field([1], min_length=1)
    other_token_every: int = Field(0, ge=0)
    sharpness: float = Field(1.0, gt=0, allow_inf_nan=False)

    @classmethod
    def parse(cls, options: dict[str, Any]) -> ScriptOptions:
        try:
            # through JSON, where a pair is a list
            return cls.model_validate_json(json.dumps(options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                raise UserError(
                    f"path.options.{name}: unknown; scripted takes {', '.join(cls.model_fields)}"
                ) from error
            raise UserError(f"path.options.{name}={first['input']!r}: {first['msg']}") from error

    def answer(
        self, request: Request, arrival: int, *, vocab_size: int, mtp: int, forced_al: float | None
    ) -> Answer:
        """To the request that arrived as number `arrival` (from 0)."""
        params, forced = request.params, request.forced_ids
        length = params.max_tokens if forced is None else min(params.max_tokens, len(forced))
        return Answer(
            script=self.script(arrival, length, mtp=mtp, forced_al=forced_al),
            first=zlib.crc32(request.prompt_ids.astype("<i4").tobytes()) % vocab_size,
            forced=forced,
            alternatives=params.logprobs,
            vocab_size=vocab_size,
            other_every=self.other_token_every,
            sharpness=self.sharpness,
        )

    def script(
        self, arrival: int, max_tokens: int, *, mtp: int = 0, forced_al: float | None = None
    ) -> Script:
        """The script of the request that arrived as number `arrival` (from 0)."""
        if self.requests:
            entry = self.requests[arrival % len(self.requests)]
            finish = _FINISH[entry.finish]
            if not entry.events:
                return self._without_tokens(finish)
            events = np.asarray(entry.events, dtype=np.float64).reshape(-1, 2)
            at = (events[:, 0] * _NS_PER_MS).astype(np.int64)
            return _plain(at, np.cumsum(events[:, 1]).astype(np.int64), finish)
        number = arrival + 1
        if self.fail_every and number % self.fail_every == 0:
            return self._without_tokens(FinishReason.ERROR)
        if self.empty_every and number % self.empty_every == 0:
            return self._without_tokens(FinishReason.STOP)
        target, reason = max_tokens, FinishReason.LENGTH
        if self.early_stop_every and number % self.early_stop_every == 0:
            target, reason = max(1, max_tokens // 2), FinishReason.STOP
        if mtp:
            return self._with_drafts(target, reason, mtp, self._acceptance(target, arrival, mtp, forced_al))
        events_needed = -(-target * len(self.tokens_per_event) // sum(self.tokens_per_event))
        counts = np.resize(self.tokens_per_event, events_needed + len(self.tokens_per_event))
        total: npt.NDArray[np.int64] = np.minimum(np.cumsum(counts), target).astype(np.int64)
        total = total[: int(np.argmax(total == target)) + 1]
        return _plain(self._times(len(total)), total, reason)

    def _times(self, events: int) -> npt.NDArray[np.int64]:
        return ((self.first_ms + self.gap_ms * np.arange(events)) * _NS_PER_MS).astype(np.int64)

    def _acceptance(
        self, steps: int, arrival: int, mtp: int, forced_al: float | None
    ) -> npt.NDArray[np.int64]:
        """Drafts that each of a request's verifications accepts, [steps]; forced: by chance, of that mean."""
        if forced_al is None:
            return np.minimum(np.resize(self.accepted, steps), mtp).astype(np.int64)
        sure = min(int(forced_al - 1), mtp)
        more = np.random.default_rng(arrival).random(steps) < forced_al - 1 - sure
        return np.minimum(sure + more, mtp).astype(np.int64)

    def _with_drafts(
        self, target: int, finish: FinishReason, mtp: int, accepted: npt.NDArray[np.int64]
    ) -> Script:
        """One token of the prompt's step, then verifications: what they accepted and one token more."""
        total: npt.NDArray[np.int64] = np.cumsum([1, *(accepted + 1)]).astype(np.int64)
        events = int(np.argmax(total >= target)) + 1
        verified = np.full(events, mtp)
        verified[0] = 0
        return Script(
            at_ns=self._times(events),
            total=np.minimum(total[:events], target),
            finish=finish,
            drafted=verified,
            accepted=np.array([0, *accepted[: events - 1]], dtype=np.int64),
        )

    def _without_tokens(self, finish: FinishReason) -> Script:
        at = np.array([self.first_ms * _NS_PER_MS], dtype=np.int64)
        return _plain(at, np.zeros(1, dtype=np.int64), finish)


def _plain(at_ns: npt.NDArray[np.int64], total: npt.NDArray[np.int64], finish: FinishReason) -> Script:
    """Without drafts."""
    none = np.zeros(len(total), dtype=np.int64)
    return Script(at_ns=at_ns, total=total, finish=finish, drafted=none, accepted=none)
