"""Exit codes of the program and how several become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Stable, documented: CI reads it."""

    OK = 0  # nothing gated, or every gated cell passes
    REGRESSION = 1  # performance
    USAGE = 2  # usage or configuration
    INCONCLUSIVE = 3
    CORRECTNESS = 4
    INFRASTRUCTURE = 5  # start-up, crash, time-out, out of memory, all requests refused
    INVALID = 6  # path mismatch, machine state, cache hits
    INCOMPLETE = 7  # a required cell is missing or unsupported
    INTERRUPTED = 130


# first match wins
PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.INVALID,
    ExitCode.CORRECTNESS,
    ExitCode.REGRESSION,
    ExitCode.INFRASTRUCTURE,
    ExitCode.INCOMPLETE,
    ExitCode.INCONCLUSIVE,
    ExitCode.OK,
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a run asks for an exit code, in words that name the launch, the cell and the check."""

    code: ExitCode
    why: str


def most_severe(codes: Iterable[ExitCode]) -> ExitCode:
    """The one exit code for several findings; OK for none."""
    return min(codes, key=PRECEDENCE.index, default=ExitCode.OK)


def one_line(text: object) -> str:
    """Any message as a single line: inner line breaks and runs of spaces become one space."""
    return " ".join(str(text).split())
