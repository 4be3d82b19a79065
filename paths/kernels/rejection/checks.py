"""Index checks of rejection for `debug.checks=true`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(
    logits: Tensor,
    draft_ids: Tensor,
    draft_probs: Tensor | None,
    *,
    row_starts: Tensor,
    rows: Tensor,
    temperature: Tensor,
    max_drafts: int,
    **_: Any,
) -> None:
    """Raises ValueError for rows, row ranges or draft counts that do not exist."""
    refuse_outside("rejection", "rows", rows, low=0, high=len(temperature))
    refuse_outside("rejection", "row_starts", row_starts, low=0, high=len(logits) + 1)
    counts = row_starts.diff()
    refuse_outside("rejection", "rows per request", counts, low=0, high=max_drafts + 2)
    if draft_probs is not None:
        refuse_outside("rejection", "rows per request", counts, low=0, high=draft_probs.shape[1] + 2)
