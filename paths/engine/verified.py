"""What a verification of drafts yielded, on the host: checked, and cut where the answer ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paths.api import FinishReason
from paths.engine.output import StepResult

IntArray = npt.NDArray[np.int32]


def check_verification(result: StepResult, drafted: IntArray) -> tuple[IntArray, IntArray]:
    """Tokens and accepted drafts of each row, both `[N]`; drafted `[N]`: drafts that it verified.

    Raises RuntimeError unless every row yields its accepted drafts and then one token that is no draft.
    """
    is_token = result.tokens >= 0
    counts = is_token.sum(axis=1, dtype=np.int32)
    accepted = result.accepted
    if accepted is None:
        raise RuntimeError("the scheduler plans drafts, and the runner does not say how many it accepted")
    holes = (is_token != (np.arange(is_token.shape[1]) < counts[:, None])).any(axis=1)
    wrong = holes | (counts != accepted + 1) | (accepted < 0) | (accepted > drafted)
    if wrong.any():
        row = int(wrong.argmax())
        raise RuntimeError(
            f"row {row} of a step yields the tokens {result.tokens[row].tolist()}, {accepted[row]} of them "
            f"accepted, of {drafted[row]} drafts: those come first, and then one token that is no draft"
        )
    return counts, accepted


def cut_behind_end(
    ends: npt.NDArray[np.int8], row: npt.NDArray[Any], first: npt.NDArray[Any], counts: IntArray
) -> tuple[IntArray, npt.NDArray[np.int8]]:
    """Tokens that each row keeps and its FinishReason, both `[N]`.

    ends `[sum(counts)]`: FinishReason of each token; row: whose it is; first `[N]`: first token of a row.
    """
    finish = np.zeros(len(counts), dtype=np.int8)
    if not ends.any():
        return counts, finish
    kept = counts.copy()
    # from the back, so that the first end of a row is what stays
    for token in np.flatnonzero(ends != FinishReason.NONE)[::-1].tolist():
        finish[row[token]] = ends[token]
        kept[row[token]] = token - first[row[token]] + 1
    return kept, finish
