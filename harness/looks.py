"""Which cells of a comparison need more pairs of launches, and which pairs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.pairs import REPEATS, PairPlan, missing_pairs, next_pairs
from harness.records import CellState, Record
from harness.tier import Tier
from reports.compare.cells import ArmCell
from reports.compare.finding import Comparison, Finding
from reports.compare.words import Verdict

# what may be an accident; a path that cannot run here or runs as another will do so again
WORTH_REPEATING = (CellState.INVALID, CellState.FAILED, CellState.TIMEOUT, CellState.OOM)
OPEN_ACCURACY = (Verdict.INCONCLUSIVE, Verdict.MISSING, Verdict.NEW)


@dataclass(frozen=True, kw_only=True)
class NextPairs:
    """What is measured next. `undecided`, `repeated` and `unanswered`: names of cells, for the reader."""

    pairs: dict[int, set[str]] = field(default_factory=dict)  # pair → ids of cells
    scored: dict[int, set[str]] = field(default_factory=dict)  # pair → cells whose answers are scored again
    undecided: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)


def next_look(plan: PairPlan, tier: Tier, comparison: Comparison, records: Sequence[Record]) -> NextPairs:
    """The pairs until the next look; none when every gated cell is decided or has all its pairs.

    A pair that was lost for a recorded cause is measured again, at most twice for a cell.
    """
    begun = _begun(plan, records)
    open_cells = undecided(comparison, tier)
    needs: dict[str, Mapping[int, int]] = {}
    undecided_names: list[str] = []
    repeated: list[str] = []
    for cell_id in plan.cell_ids:
        arms = (comparison.baseline.get(cell_id), comparison.candidate.get(cell_id))
        usable, lost, hopeless = _pairs_of(plan, arms)
        if hopeless or len(lost) > REPEATS:
            continue
        need = missing_pairs(usable, wanted=_aim(len(usable), tier, undecided=cell_id in open_cells))
        if any(need.values()):
            needs[cell_id] = need
            name = next((arm.name for arm in arms if arm is not None), cell_id)
            (undecided_names if cell_id in open_cells else repeated).append(name)
    return NextPairs(pairs=next_pairs(plan, needs, after=begun), undecided=undecided_names, repeated=repeated)


def with_scorings(
    found: NextPairs, plan: PairPlan, others: Sequence[Finding], records: Sequence[Record]
) -> NextPairs:
    """`found`, and one more scoring of each cell whose accuracy is open, in a pair of its own if need be.

    Accuracy is scored once per arm, in the first pair. Where that decides nothing, or was lost, the next pair
    of the cell scores once more, as long as the tier has pairs.
    """
    begun = _begun(plan, records)
    pairs = {pair: set(cells) for pair, cells in found.pairs.items()}
    scored: dict[int, set[str]] = {}
    names: list[str] = []
    for one in others:
        if not (one.gated and one.gate == "accuracy" and one.verdict in OPEN_ACCURACY):
            continue
        planned = min((pair for pair, cells in pairs.items() if one.cell_id in cells), default=None)
        pair = begun.get(one.cell_id, 0) + 1 if planned is None else planned
        if planned is None and pair > plan.most:
            continue
        pairs.setdefault(pair, set()).add(one.cell_id)
        scored.setdefault(pair, set()).add(one.cell_id)
        if one.cell not in names:
            names.append(one.cell)
    return dataclasses.replace(found, pairs=dict(sorted(pairs.items())), scored=scored, unanswered=names)


def _begun(plan: PairPlan, records: Sequence[Record]) -> dict[str, int]:
    """The last pair that a cell had, by id."""
    begun: dict[str, int] = {}
    for record in records:
        begun[record.cell_id] = max(begun.get(record.cell_id, 0), plan.pair_of(record.pair))
    return begun


def _aim(usable: int, tier: Tier, *, undecided: bool) -> int:
    """How many usable pairs a cell goes for. Only at a look is it judged: between looks it is filled up."""
    looks = tier.pairs.looks
    if usable in looks and not undecided:
        return usable
    return next((look for look in looks if look > usable), usable)


def undecided(comparison: Comparison, tier: Tier) -> set[str]:
    """Cells, by id, that further pairs could decide.

    A loss below the margin that only lacks a noise floor is decided as far as this run can decide it.
    """
    return {
        one.cell_id
        for one in comparison.findings
        if one.gated
        and one.verdict is Verdict.INCONCLUSIVE
        and one.estimate is not None
        and one.estimate.n < tier.pairs.max
        and not _lacks_only_a_floor(one)
    }


def _lacks_only_a_floor(finding: Finding) -> bool:
    estimate = finding.estimate
    return (
        finding.floor is None
        and estimate is not None
        and finding.margin is not None
        and estimate.hi < finding.margin
    )


def _pairs_of(plan: PairPlan, arms: Sequence[ArmCell | None]) -> tuple[set[int], set[int], bool]:
    """Pairs that may be compared, pairs that are lost, and whether measuring again is of no use."""
    good: list[set[int]] = []
    seen: set[int] = set()
    hopeless = False
    for arm in arms:
        launches = arm.launches if arm is not None else ()
        good.append({plan.pair_of(one.pair) for one in launches if one.cause is None})
        seen |= {plan.pair_of(one.pair) for one in launches}
        hopeless |= any(one.cause is not None and one.state not in WORTH_REPEATING for one in launches)
    usable = good[0] & good[1]
    return usable, seen - usable, hopeless
