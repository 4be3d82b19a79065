"""Launches of two arms in one cell → pairs that may be compared, or why there are none. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.records import CellState
from harness.tier import Tier
from reports.compare.cells import ArmCell, LaunchNumbers
from reports.compare.words import Verdict

MOST_EXCLUDED = 2  # pairs of a cell that may be run again; more is no accident
WRONG = (CellState.INVALID, CellState.PATH_MISMATCH)
BROKEN = (CellState.FAILED, CellState.TIMEOUT, CellState.OOM)


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Usable launches: `pairs` when they were interleaved, else the two arms by themselves."""

    pairs: tuple[tuple[LaunchNumbers, LaunchNumbers], ...] = ()  # baseline, candidate
    baseline: tuple[LaunchNumbers, ...] = ()
    candidate: tuple[LaunchNumbers, ...] = ()
    exclusions: tuple[str, ...] = ()
    verdict: Verdict | None = None  # set when the cell has nothing to compare
    reason: str | None = None
    infrastructure: bool = False
    flags: tuple[str, ...] = field(default=())

    @property
    def interleaved(self) -> bool:
        return bool(self.pairs)


def pair_launches(baseline: ArmCell, candidate: ArmCell, *, interleaved: bool, tier: Tier | None) -> Pairing:
    """Joins the launches of a cell by pair; leaves out, with its reason, what has a cause or no partner."""
    arms = {"baseline": baseline, "candidate": candidate}
    unused = [(arm, one) for arm, cell in arms.items() for one in cell.launches if one.cause is not None]
    exclusions = [f"{arm} {one.launch_id} (pair {one.pair}): {one.cause}" for arm, one in unused]
    good = {arm: {one.pair: one for one in cell.launches if one.cause is None} for arm, cell in arms.items()}
    both = sorted(good["baseline"].keys() & good["candidate"].keys())
    lost = {one.pair for _, one in unused}
    if interleaved:
        for arm, launches in good.items():
            alone = [launches[pair] for pair in sorted(launches.keys() - set(both) - lost)]
            exclusions += [
                f"{arm} {one.launch_id} (pair {one.pair}): no launch of the other arm" for one in alone
            ]
            lost |= {one.pair for one in alone}
        usable = len(both)
    else:
        usable = min(len(launches) for launches in good.values())
    fewest = tier.pairs.min if tier and interleaved else 1
    if usable == 0 or (lost and (usable < fewest or len(lost) > MOST_EXCLUDED)):
        return _nothing(unused, exclusions, usable)
    pairs = [(good["baseline"][pair], good["candidate"][pair]) for pair in both] if interleaved else []
    used = {arm: tuple(launches[pair] for pair in sorted(launches)) for arm, launches in good.items()}
    if interleaved:
        used = {"baseline": tuple(p[0] for p in pairs), "candidate": tuple(p[1] for p in pairs)}
    return Pairing(
        pairs=tuple(pairs),
        baseline=used["baseline"],
        candidate=used["candidate"],
        exclusions=tuple(exclusions),
        flags=tuple(
            f"{arm}: {flag}" for arm in arms for flag in sorted({f for one in used[arm] for f in one.flags})
        ),
    )


def nothing_usable(cell: ArmCell) -> Pairing | None:
    """Why a cell of the candidate alone has no numbers; None when it has."""
    unused = [("candidate", one) for one in cell.launches if one.cause is not None]
    if len(unused) < len(cell.launches):
        return None
    return _nothing(unused, [f"candidate {one.launch_id}: {one.cause}" for _, one in unused], 0)


def _nothing(unused: list[tuple[str, LaunchNumbers]], exclusions: list[str], usable: int) -> Pairing:
    """INVALID if a measurement was wrong, else MISSING; the first cause stands in the reason."""
    by_kind = sorted(unused, key=lambda entry: entry[1].state not in WRONG)
    arm, first = by_kind[0] if by_kind else ("", None)
    count = f"{usable} usable pairs of launches" if usable else "no usable pair of launches"
    cause = (
        f"; {arm} {first.launch_id}: {first.cause}" if first else f"; {exclusions[0]}" if exclusions else ""
    )
    wrong = first is not None and first.state in WRONG
    return Pairing(
        exclusions=tuple(exclusions),
        verdict=Verdict.INVALID if wrong else Verdict.MISSING,
        reason=count + cause,
        infrastructure=not wrong and any(one.state in BROKEN for _, one in unused),
    )
