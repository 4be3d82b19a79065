"""Which graph runs a batch: FULL, else PIECEWISE, else none, and why not a better one."""

from __future__ import annotations

from collections.abc import Sequence

from paths.api import UserError
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.shape import BatchShape, Descriptor


def uniform_tokens(num_reqs: int, query_len: int) -> int:
    """Token rows of a batch in which every request has query_len tokens."""
    return num_reqs * query_len


class Dispatcher:
    """Pure: a batch's shape → the graph's key. `descriptors` are all keys, in the order of capture.

    Sizes above a capacity become that capacity, so that the largest batch of all fits. Raises UserError for a
    configuration that makes no sense.
    """

    def __init__(
        self,
        config: GraphConfig,
        *,
        max_num_tokens: int,
        max_num_reqs: int,
        index_topk: int,
        max_model_len: int,
    ) -> None:
        _check(config)
        self._config = config
        self._index_topk = index_topk
        self._decode_piecewise = GraphMode.PIECEWISE in (config.decode, config.mixed)
        self._full_reqs = {
            query_len: _clamped(config.full_sizes, min(max_num_reqs, max_num_tokens // query_len))
            for query_len in (config.query_lens if config.decode is GraphMode.FULL else ())
        }
        self._piecewise_tokens = (
            _clamped(config.piecewise_sizes, max_num_tokens) if self._decode_piecewise else []
        )
        kinds = [True, False] if max_model_len > index_topk else [False]
        self.descriptors = [
            self._piecewise(num_tokens, sparse=sparse)
            for num_tokens in reversed(self._piecewise_tokens)
            for sparse in kinds
        ]
        full = [
            (uniform_tokens(num_reqs, query_len), num_reqs, query_len)
            for query_len, sizes in self._full_reqs.items()
            for num_reqs in sizes
        ]
        self.descriptors += [
            self._full(num_reqs, query_len, sparse=sparse)
            for _, num_reqs, query_len in sorted(full, reverse=True)
            for sparse in kinds
        ]

    def dispatch(self, shape: BatchShape) -> tuple[Descriptor, str | None]:
        """The key for a batch, and a reason where it runs below the configured mode."""
        sparse = shape.sparse(self._index_topk)
        wanted = self._config.mixed if shape.query_len is None else self._config.decode
        missed: list[str] = []
        if wanted is GraphMode.FULL:
            num_reqs, reason = self._fit_full(shape)
            if reason is None:
                assert shape.query_len is not None, "uniform batches only"
                return self._full(num_reqs, shape.query_len, sparse=sparse), None
            missed.append(reason)
        if wanted is not GraphMode.NONE:
            reason = self._piecewise_reason(shape)
            if reason is None:
                size = next(size for size in self._piecewise_tokens if size >= shape.num_tokens)
                return self._piecewise(size, sparse=sparse), "; ".join(missed) or None
            missed.append(reason)
        eager = Descriptor(
            mode=GraphMode.NONE,
            num_tokens=shape.num_tokens,
            num_reqs=shape.num_reqs,
            query_len=None,
            sparse=sparse,
        )
        return eager, "; ".join(missed) or None

    def _fit_full(self, shape: BatchShape) -> tuple[int, str | None]:
        query_len = shape.query_len
        if shape.num_reqs == 0 or query_len is None:
            return 0, "FULL: no rows"
        if shape.num_tokens != uniform_tokens(shape.num_reqs, query_len):
            return 0, "FULL: num_tokens is not num_reqs × query_len"
        if query_len not in self._full_reqs:
            return 0, f"FULL: query_len {query_len} was not captured"
        sizes = self._full_reqs[query_len]
        fitting = _smallest(sizes, shape.num_reqs)
        if fitting is None:
            return 0, f"FULL: num_reqs above the largest size {sizes[-1] if sizes else 0}"
        return fitting, None

    def _piecewise_reason(self, shape: BatchShape) -> str | None:
        """Why no PIECEWISE graph fits."""
        sizes, most = self._piecewise_tokens, self._config.piecewise_reqs
        if not sizes:
            return "PIECEWISE: not configured"
        if shape.num_tokens == 0:
            return "PIECEWISE: no rows"
        if shape.num_tokens > sizes[-1]:
            return f"PIECEWISE: num_tokens above the largest size {sizes[-1]}"
        if most and shape.num_reqs > most:
            return f"PIECEWISE: num_reqs above {most}"
        return None

    def _full(self, num_reqs: int, query_len: int, *, sparse: bool) -> Descriptor:
        return Descriptor(
            mode=GraphMode.FULL,
            num_tokens=uniform_tokens(num_reqs, query_len),
            num_reqs=num_reqs,
            query_len=query_len,
            sparse=sparse,
        )

    def _piecewise(self, num_tokens: int, *, sparse: bool) -> Descriptor:
        """Captured segments look at token rows only: any number of requests fits, unless there is a limit."""
        return Descriptor(
            mode=GraphMode.PIECEWISE,
            num_tokens=num_tokens,
            num_reqs=self._config.piecewise_reqs,
            query_len=None,
            sparse=sparse,
        )


def _check(config: GraphConfig) -> None:
    if config.mixed is GraphMode.FULL:
        raise UserError("graphs.mixed=FULL: allowed are NONE and PIECEWISE; FULL is for uniform decode only")
    for name in ("full_sizes", "piecewise_sizes", "query_lens"):
        values = getattr(config, name)
        if list(values) != sorted(set(values)) or any(value < 1 for value in values):
            raise UserError(f"graphs.{name}={list(values)}: must be ascending numbers of at least 1")


def _clamped(sizes: Sequence[int], limit: int) -> list[int]:
    return sorted({min(size, limit) for size in sizes}) if limit > 0 else []


def _smallest(sizes: Sequence[int], wanted: int) -> int | None:
    return next((size for size in sizes if size >= wanted), None)
