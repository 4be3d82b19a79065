"""Whether what an engine says of its drafts can be true: sums, order, and tokens that came of them. Pure."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from harness.acceptance import DraftCounts, Speculation, draft_counts
from harness.measurement import Cut, Measurement
from harness.records import Check
from harness.verifications import Verifications, verifications

FORCED_TOLERANCE = 0.01  # of the asked length
FORCED_ERRORS = 4.0  # standard errors by which chance may miss it: 1 of 16,000 cells


def acceptance_checks(measurement: Measurement, asked: Speculation) -> dict[str, Check]:
    """The checks of a cell with drafts; one without has a check only when it drafted all the same."""
    counts = _counts(measurement, asked.mtp)
    if not asked.mtp:
        return {} if counts is None or not counts.verify_steps else {"drafting": _uninvited(counts)}
    if counts is None:
        unknown = Check(ok=None, detail="no engine counters around the load")
        return dict.fromkeys(("drafting", "acceptance", "bonus_token"), unknown)
    told = verifications(measurement)
    checks = {
        "drafting": _drafting(counts, asked.mtp),
        "acceptance": _acceptance(measurement, counts, told, asked.mtp),
        "bonus_token": _bonus_token(measurement, told, asked.mtp),
    }
    return checks | ({} if asked.forced_al is None else {"forced_al": _forced(told, asked)})


def _counts(measurement: Measurement, mtp: int) -> DraftCounts | None:
    """Of the window, or of the whole load where there was none."""
    start = measurement.window_start or measurement.before
    end = measurement.window_end or measurement.after
    if start is None or end is None or end.time_ns < start.time_ns:
        return None
    return draft_counts(start, end, mtp)


def _load_counts(measurement: Measurement, mtp: int) -> DraftCounts | None:
    """Of the whole load, at whose ends the engine is idle; None where requests were given up meanwhile."""
    before, after = measurement.before, measurement.after
    if before is None or after is None or np.any(measurement.requests.cut != Cut.NONE):
        return None
    return draft_counts(before, after, mtp)


def _uninvited(counts: DraftCounts) -> Check:
    return Check(ok=False, detail=f"{counts.verify_steps} verifications of drafts with mtp=0")


def _drafting(counts: DraftCounts, mtp: int) -> Check:
    """Asked for and silently off looks like "no gain"."""
    if counts.verify_steps > 0 and counts.drafted > 0:
        return Check(
            ok=True, detail=f"{counts.drafted} drafts in {counts.verify_steps} verifications, mtp={mtp}"
        )
    if not counts.decode_tokens:
        return Check(ok=None, detail="no request reached a second token")
    return Check(
        ok=False,
        detail=f"mtp={mtp} was asked for, but no draft was verified: drafting is off, or there was no room "
        "for a draft (osl below 3, or a small engine.max_num_batched_tokens)",
    )


def _acceptance(measurement: Measurement, counts: DraftCounts, told: Verifications | None, mtp: int) -> Check:
    """Sums and order of the counters, and the same sums out of the events."""
    wrong = contradictions(counts, mtp)
    load = _load_counts(measurement, mtp)
    if told is None and counts.verify_steps:
        wrong.append("the engine counts verifications, but its events tell of none")
    elif told is not None:
        if np.any(told.accepted > told.drafted):
            wrong.append("an event accepted more drafts than it had")
        if load is not None:
            wrong += _events_against(load, told, mtp)
    if wrong:
        return Check(ok=False, detail="; ".join(wrong))
    scope = "" if load is not None else "; not compared with the events: requests were given up"
    return Check(ok=True, detail=f"accepted {counts.accepted} of {counts.drafted} drafts, sums agree{scope}")


def contradictions(counts: DraftCounts, mtp: int) -> list[str]:
    """What cannot be true of the counters alone."""
    at, verified = counts.accepted_at, counts.verified_at
    wrong = []
    if counts.accepted > counts.drafted:
        wrong.append(f"accepted {counts.accepted} of {counts.drafted} drafts")
    if sum(at) != counts.accepted:
        wrong.append(f"accepted per position adds up to {sum(at)}, not {counts.accepted}")
    if sum(verified) != counts.drafted:
        wrong.append(f"verified per position adds up to {sum(verified)}, not {counts.drafted}")
    if len(at) > mtp:
        wrong.append(f"{len(at)} positions with mtp={mtp}")
    for name, values in (("accepted", at), ("verified", verified)):
        if any(later > earlier for earlier, later in pairwise(values)):
            wrong.append(f"{name} per position rises: {', '.join(map(str, values))}")
    if verified and verified[0] != counts.verify_steps:
        wrong.append(f"{verified[0]} first drafts in {counts.verify_steps} verifications")
    if any(hits > tries for hits, tries in zip(at, verified, strict=True)):
        wrong.append("a position was accepted more often than verified")
    return wrong


def _events_against(load: DraftCounts, told: Verifications, mtp: int) -> list[str]:
    """Counters of the whole load that its events contradict."""
    sums = {
        "verifications": (load.verify_steps, len(told.drafted)),
        "drafts": (load.drafted, int(told.drafted.sum())),
        "accepted drafts": (load.accepted, int(told.accepted.sum())),
    }
    for draft in range(mtp):
        sums[f"accepted at draft {draft + 1}"] = (load.accepted_at[draft], int(told.accepted_at(draft).sum()))
    return [
        f"{name}: the engine counted {counted}, its events add up to {said}"
        for name, (counted, said) in sums.items()
        if counted != said
    ]


def _bonus_token(measurement: Measurement, told: Verifications | None, mtp: int) -> Check:
    """A verification emits what it accepted and one token more; that one is no accepted draft."""
    if told is None:
        return Check(ok=None, detail="the engine's events tell of no drafts")
    missing = told.accepted + 1 - told.tokens
    odd = np.where(told.closing, missing < 0, missing != 0)
    if odd.any():
        first = int(np.flatnonzero(odd)[0])
        return Check(
            ok=False,
            detail=f"{int(odd.sum())} of {len(odd)} verifications did not emit accepted + 1 tokens; the first"
            f" accepted {int(told.accepted[first])} and emitted {int(told.tokens[first])}:"
            " is the token that ends a verification counted as a draft?",
        )
    load = _load_counts(measurement, mtp)
    if load is None:
        return Check(ok=None, detail="no counters of the whole load, or requests were given up")
    expected = load.verify_steps + load.accepted - load.truncated + told.other_tokens
    detail = (
        f"{load.verify_steps} verifications + {load.accepted} accepted - {load.truncated} cut"
        f" + {told.other_tokens} tokens without drafts = {expected}, emitted {load.output_tokens}"
    )
    return Check(ok=expected == load.output_tokens, detail=detail)


def _forced(told: Verifications | None, asked: Speculation) -> Check:
    """The asked length was met, but for chance: the proof that the engine forces it.

    Of verifications of `mtp` drafts alone: near the end of an answer there may be fewer to accept.
    """
    accepted = None if told is None else told.accepted[told.drafted == asked.mtp]
    if accepted is None or not len(accepted) or asked.forced_al is None:
        return Check(ok=None, detail=f"no verification of {asked.mtp} drafts")
    mean, error = 1 + float(accepted.mean()), float(accepted.std()) / math.sqrt(len(accepted))
    allowed = max(FORCED_TOLERANCE * asked.forced_al, FORCED_ERRORS * error)
    return Check(
        ok=abs(mean - asked.forced_al) <= allowed,
        detail=f"acceptance length {mean:.4g} of {asked.forced_al:g} forced (± {allowed:.2g},"
        f" {len(accepted)} verifications of {asked.mtp} drafts)",
    )
