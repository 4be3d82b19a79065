"""Index checks of dense_mha for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    *,
    scale: float,
    max_queries: int,
) -> None:
    """Raises ValueError for starts that fall or pass the rows, and for a request longer than max_queries."""
    op = "dense_mha"
    refuse_outside(op, "query_starts", query_starts, low=0, high=q.shape[0] + 1)
    refuse_outside(op, "key_starts", key_starts, low=0, high=k.shape[0] + 1)
    refuse_outside(op, "queries of a request", query_starts.diff(), low=0, high=max_queries + 1)
    refuse_outside(op, "keys of a request", key_starts.diff(), low=0, high=k.shape[0] + 1)
