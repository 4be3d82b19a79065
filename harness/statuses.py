"""What became of a request, in one word."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from harness.measurement import Cut, RequestColumns
from paths.api import FinishReason


class Status(StrEnum):
    OK = "ok"
    HTTP_ERROR = "http_error"  # refused or failed by the engine
    TIMEOUT = "timeout"
    DISCONNECT = "disconnect"
    TRUNCATED = "truncated"  # the stream ended without a finish reason
    EMPTY = "empty"
    EARLY_STOP = "early_stop"
    OSL_MISMATCH = "osl_mismatch"
    CANCELLED = "cancelled"


STATUSES = tuple(Status)
CODE = {status: code for code, status in enumerate(STATUSES)}
BROKEN_LENGTH = (Status.EARLY_STOP, Status.OSL_MISMATCH, Status.EMPTY)  # of an exact length


def classify(
    requests: RequestColumns, output_tokens: npt.NDArray[np.int64], *, exact_lengths: bool
) -> npt.NDArray[np.int8]:
    """Status code (index into STATUSES) of each request, [R].

    `output_tokens` [R] are tokens that arrived; the requested number is only compared with, never credited.
    """
    finish, asked = requests.finish, requests.requested_tokens
    ended = (finish == FinishReason.STOP) | (finish == FinishReason.LENGTH)
    codes = np.full(len(requests), CODE[Status.OK], dtype=np.int8)
    codes[ended & (output_tokens > asked)] = CODE[Status.OSL_MISMATCH]
    if exact_lengths:
        wrong = (output_tokens != asked) | (finish != FinishReason.LENGTH)
        codes[ended & wrong] = CODE[Status.OSL_MISMATCH]
        codes[(finish == FinishReason.STOP) & (output_tokens < asked)] = CODE[Status.EARLY_STOP]
    codes[ended & (output_tokens == 0)] = CODE[Status.EMPTY]
    codes[finish == FinishReason.NONE] = CODE[Status.TRUNCATED]
    codes[finish == FinishReason.ABORT] = CODE[Status.CANCELLED]
    codes[finish == FinishReason.ERROR] = CODE[Status.HTTP_ERROR]
    # what the client did outweighs the closing event that it provoked
    codes[requests.cut == Cut.TIMEOUT] = CODE[Status.TIMEOUT]
    codes[requests.cut == Cut.CANCELLED] = CODE[Status.CANCELLED]
    codes[requests.cut == Cut.DISCONNECT] = CODE[Status.DISCONNECT]
    return codes


def count(codes: npt.NDArray[np.int8]) -> dict[str, int]:
    """How many requests had each status; statuses that did not occur are left out."""
    totals = np.bincount(codes, minlength=len(STATUSES))
    return {str(status): int(totals[code]) for code, status in enumerate(STATUSES) if totals[code]}
