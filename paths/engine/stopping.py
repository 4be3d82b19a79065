"""Who ends with a step's tokens, and what else its events carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paths.api import EventDetail, FinishReason, TokenLogprobs
from paths.engine.requests import RequestState, RequestTable


class StopRules:
    """End-of-sequence tokens, stop ids, stop strings and length limits."""

    def __init__(self, table: RequestTable, eos_token_ids: Sequence[int]) -> None:
        self._table = table
        self._eos_token_ids = np.asarray(eos_token_ids, dtype=np.int32)
        self._is_eos = frozenset(eos_token_ids)

    def judge(
        self,
        slots: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int32],
        totals: npt.NDArray[np.int32],
        logprobs: dict[int, TokenLogprobs],
    ) -> tuple[npt.NDArray[np.int8], dict[int, EventDetail]]:
        """FinishReason `[N]` and details by row, of new tokens `[N]`; totals `[N]`: lengths with them.

        Several tokens of a request stand together, in order; what is said of those behind its end is void.
        """
        table = self._table
        finish = np.zeros(len(slots), dtype=np.int8)
        finish[totals >= table.max_total[slots]] = FinishReason.LENGTH
        stopped = (tokens[:, None] == self._eos_token_ids).any(axis=1)
        if stopped.any():
            past_minimum = totals >= table.min_total[slots]
            finish[stopped & ~table.ignore_eos[slots] & past_minimum] = FinishReason.STOP
        details: dict[int, EventDetail] = {}
        if table.plain[slots].all():
            return finish, details
        ended = -1
        for row in np.flatnonzero(~table.plain[slots]).tolist():
            if int(slots[row]) == ended:
                continue  # its text is complete
            detail = self._judge_special(int(slots[row]), int(tokens[row]), int(totals[row]), finish, row)
            if row in logprobs:
                detail = dataclasses.replace(detail, logprobs=(logprobs[row],))
            if detail != EventDetail():
                details[row] = detail
            if finish[row]:
                ended = int(slots[row])
        return finish, details

    def judge_plain(self, slot: int, tokens: Sequence[int], known: int) -> tuple[int, FinishReason]:
        """How many of the new tokens of one plain request it keeps, and its end; known: tokens before."""
        table = self._table
        limit = int(table.max_total[slot])
        stops = not table.ignore_eos[slot] and not self._is_eos.isdisjoint(tokens)
        if not stops and known + len(tokens) < limit:
            return len(tokens), FinishReason.NONE
        for kept, token in enumerate(tokens, start=1):
            if stops and token in self._is_eos and known + kept >= table.min_total[slot]:
                return kept, FinishReason.STOP
            if known + kept >= limit:
                return kept, FinishReason.LENGTH
        return len(tokens), FinishReason.NONE

    def _judge_special(
        self, slot: int, token: int, total: int, finish: npt.NDArray[np.int8], row: int
    ) -> EventDetail:
        """Stop ids, stop strings and prompt log-probs of one request."""
        state, params = self._table.state(slot), self._table.state(slot).params
        produced = total - int(self._table.prompt_len[slot])
        prompt_logprobs = None
        if params.prompt_logprobs is not None and produced == 1:
            prompt_logprobs = (None, *state.prompt_logprobs)
        past_minimum = produced >= params.min_tokens
        if past_minimum and token in params.stop_token_ids:
            finish[row] = FinishReason.STOP
        text = None
        if state.detokenizer is not None:
            found = _find_stop(state, token)
            cut = found if past_minimum else None
            if cut is not None:
                finish[row] = FinishReason.STOP
            if finish[row]:
                text = state.detokenizer.flush()[:cut]
        return EventDetail(prompt_logprobs=prompt_logprobs, text=text)


def _find_stop(state: RequestState, token: int) -> int | None:
    """Where the earliest stop string begins in the text that this token completed, if one does."""
    assert state.detokenizer is not None
    new = state.detokenizer.append([token])
    text = state.detokenizer.text
    found = [
        at
        for stop in state.params.stop
        if (at := text.find(stop, max(0, len(text) - len(new) - len(stop) + 1))) >= 0
    ]
    return min(found, default=None)
