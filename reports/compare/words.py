"""Verdict words and what each of them is worth to the exit code."""

from __future__ import annotations

from enum import StrEnum

from harness.errors import ExitCode


class Verdict(StrEnum):
    """Of one cell and metric, of one accuracy task, of one equivalence test."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    MISSING = "MISSING"
    NEW = "NEW"
    NOT_COMPARABLE = "NOT_COMPARABLE"


class RunVerdict(StrEnum):
    """Of a whole comparison."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    ERROR = "ERROR"  # infrastructure
    INCOMPLETE = "INCOMPLETE"
    NOT_GATED = "NOT_GATED"  # numbers only


EXIT_OF_VERDICT = {
    Verdict.PASS: ExitCode.OK,
    Verdict.IMPROVED: ExitCode.OK,
    Verdict.NEW: ExitCode.OK,
    Verdict.FAIL: ExitCode.REGRESSION,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Verdict.NOT_COMPARABLE: ExitCode.INCONCLUSIVE,
    Verdict.INVALID: ExitCode.INVALID,
    Verdict.MISSING: ExitCode.INCOMPLETE,
}

RUN_VERDICT_OF_EXIT = {
    ExitCode.OK: RunVerdict.PASS,
    ExitCode.REGRESSION: RunVerdict.FAIL,
    ExitCode.CORRECTNESS: RunVerdict.FAIL,
    ExitCode.INCONCLUSIVE: RunVerdict.INCONCLUSIVE,
    ExitCode.INFRASTRUCTURE: RunVerdict.ERROR,
    ExitCode.INVALID: RunVerdict.INVALID,
    ExitCode.INCOMPLETE: RunVerdict.INCOMPLETE,
    ExitCode.INTERRUPTED: RunVerdict.INCOMPLETE,
    ExitCode.USAGE: RunVerdict.ERROR,
}
