"""Refuses requests that can never run, before they take a slot."""

from __future__ import annotations

import numpy as np

from paths.api import WHOLE_VOCABULARY, Request, UserError
from paths.engine.kv_cache import pages_for
from paths.engine.requests import output_limit

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class AdmissionRules:
    """The limits of one engine. `check` raises UserError naming value, limit and remedy."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_model_len: int,
        kv_pages: int,
        has_tokenizer: bool,
    ) -> None:
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._kv_pages = kv_pages
        self._has_tokenizer = has_tokenizer

    def check(self, request: Request) -> None:
        self._check_ids("prompt_ids", request.prompt_ids)
        if request.forced_ids is not None:
            self._check_ids("forced_ids", request.forced_ids)
        self._check_lengths(request)
        self._check_sampling(request)

    def _check_ids(self, name: str, ids: np.ndarray) -> None:
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise UserError(f"{name}: {ids.dtype} of shape {ids.shape}; give one row of integer token ids")
        if len(ids) == 0:
            raise UserError(f"{name}: empty; give at least one token id")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._vocab_size:
            bad = low if low < 0 else high
            raise UserError(
                f"{name}: token id {bad} is outside 0 … {self._vocab_size - 1}; use the model's ids"
            )

    def _check_lengths(self, request: Request) -> None:
        params, prompt = request.params, len(request.prompt_ids)
        if params.max_tokens < 1:
            raise UserError(f"max_tokens {params.max_tokens}: must be at least 1")
        if not 0 <= params.min_tokens <= params.max_tokens:
            raise UserError(f"min_tokens {params.min_tokens}: must lie in 0 … max_tokens {params.max_tokens}")
        total = prompt + output_limit(request)
        if total > self._max_model_len:
            raise UserError(
                f"prompt of {prompt} tokens and {total - prompt} output tokens exceed the context of "
                f"{self._max_model_len}; shorten one of them or raise engine.max_model_len"
            )
        if pages_for(total) > self._kv_pages:
            raise UserError(
                f"{total} tokens need {pages_for(total)} KV pages, the cache has {self._kv_pages}; "
                "raise engine.kv_pages"
            )

    def _check_sampling(self, request: Request) -> None:
        params = request.params
        if not (np.isfinite(params.temperature) and params.temperature >= 0):
            raise UserError(f"temperature {params.temperature}: must be 0 (greedy) or a positive number")
        if not 0 < params.top_p <= 1:
            raise UserError(f"top_p {params.top_p}: must lie in (0, 1]; 1 is off")
        if not 0 <= params.top_k <= _INT32_MAX:
            raise UserError(f"top_k {params.top_k}: must lie in 0 (off) … {_INT32_MAX}")
        if params.seed is not None and not -_INT64_MAX <= params.seed <= _INT64_MAX:
            raise UserError(f"seed {params.seed}: must lie in ±{_INT64_MAX}")
        for token in params.stop_token_ids:
            if not 0 <= token < self._vocab_size:
                last = self._vocab_size - 1
                raise UserError(f"stop_token_ids: {token} is outside 0 … {last}; use the model's ids")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and not WHOLE_VOCABULARY <= value <= self._vocab_size:
                raise UserError(f"{name} {value}: must lie in -1 (whole vocabulary) … {self._vocab_size}")
        if params.stop and not self._has_tokenizer:
            raise UserError(
                "stop strings need a tokenizer; give the model a tokenizer.json or use stop_token_ids"
            )
        if any(text == "" for text in params.stop):
            raise UserError("stop: an empty string would end every request at once; remove it")
