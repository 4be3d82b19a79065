"""A run that compares two arms: look by look, then verdict, artifacts and exit code."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from harness.baseline_code import BaselineCode
from harness.comparison_info import ArmInfo, ComparisonInfo
from harness.console import err
from harness.environment import current_revision
from harness.errors import Cause, ExitCode, most_severe, one_line
from harness.looks import NextPairs, next_look, with_scorings
from harness.noise_floor import floor_path, keep_floor, what_is_seen
from harness.pairs import PairPlan
from harness.plan import Launch
from harness.records import CellState, Record, RecordError
from harness.run_folder import RunFolder
from harness.step_summary import tell_step_summary
from harness.tier import Tier

FLOOR_COPY = "noise_floor.json"
MOST_NAMES = 6
SHOWN_REVISION = 10  # characters


@dataclass(frozen=True, kw_only=True)
class Closing:
    """How a comparison ended, and what prints that."""

    code: ExitCode
    say: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class GatedRun:
    """What `harness.run` asks of a comparison. `tier` None: numbers, nothing is gated."""

    plan: PairPlan
    tier: Tier | None
    info: ComparisonInfo
    code: BaselineCode
    out_dir: Path
    dtypes_under_test: Sequence[str] = ()

    @property
    def first(self) -> list[Launch]:
        """The launches before the first look; of an A/A run all of them."""
        pairs = self.plan.most if self.tier is None or self.is_aa else self.tier.pairs.looks[0]
        return [launch for pair in range(1, pairs + 1) for launch in self.plan.launches(pair)]

    @property
    def is_aa(self) -> bool:
        return self.info.kind == "aa"

    @property
    def cold_starts(self) -> bool:
        """Whether every launch must show a cold start."""
        return self.tier is not None and "startup_cold_s" in self.tier.gated

    def prepare(self, folder: RunFolder) -> None:
        """comparison.json, and a copy of the noise floor, so that the verdict can be found again. OSError."""
        from reports.gate.plan_file import ArmSource, ComparisonFile, write_plan

        if self.is_aa:
            return
        source = floor_path(self.out_dir, self.info.fingerprint)
        if source.exists():
            shutil.copyfile(source, folder.path / FLOOR_COPY)
        arms = {
            name: ArmSource(
                run_dir=".", arm_ids=arm.arm_ids, name=self._name(name, arm), revision=arm.revision
            )
            for name, arm in (("baseline", self.info.baseline), ("candidate", self.info.candidate))
        }
        write_plan(
            folder.path,
            ComparisonFile(
                baseline=arms["baseline"],
                candidate=arms["candidate"],
                tier=self.tier,
                floor=FLOOR_COPY if source.exists() else None,
                fingerprint=self.info.fingerprint,
                required=self._required(),
                dtypes_under_test=list(self.dtypes_under_test),
                judged_on=date.today(),
            ),
        )

    def _name(self, role: str, arm: ArmInfo) -> str:
        """The paths of an arm; where both arms have the same, what tells them apart."""
        arms = (self.info.baseline, self.info.candidate)
        if arms[0].name != arms[1].name:
            return arm.name
        same_code = arms[0].revision == arms[1].revision
        return f"{arm.name} ({role})" if same_code else f"{arm.name} at {arm.revision[:SHOWN_REVISION]}"

    def _required(self) -> dict[str, str]:
        """Every planned cell with its name, as the comparison calls it: without the path."""
        cells = [pair.candidate for lane in self.plan.lanes for pair in lane]
        return {cell.cell_id: cell.label.removeprefix(f"{cell.engine.path} ") for cell in cells}

    def more(self, folder: RunFolder, records: Sequence[Record]) -> list[Launch]:
        """The launches until the next look, and a line that says why. None: all is decided."""
        if self.tier is None or self.is_aa:
            return []
        from reports.gate.run_gate import judge_folder

        judgement = judge_folder(folder.path)
        found = with_scorings(
            next_look(self.plan, self.tier, judgement.comparison, records),
            self.plan,
            judgement.others,
            records,
        )
        self._say(found)
        return [
            dataclasses.replace(launch, scores=any(cell.cell_id in scored for cell in launch.cells))
            for pair, cells in found.pairs.items()
            for scored in (found.scored.get(pair, set()),)
            for launch in self.plan.launches(pair, cells)
        ]

    def _say(self, found: NextPairs) -> None:
        reasons = (
            (found.undecided, "undecided"),
            (found.repeated, "to be measured again"),
            (found.unanswered, "accuracy to be scored again"),
        )
        for names, why in reasons:
            if names and found.pairs:
                shown = ", ".join(names[:MOST_NAMES])
                more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
                err.print(
                    f"{why}: {shown}{more}; {len(found.pairs)} more pairs", markup=False, soft_wrap=True
                )

    def excuses(self, state: CellState) -> bool:
        """Whether a launch in this state counts only through the verdict: its pair is measured again."""
        return state is CellState.INVALID and (self.tier is not None or self.is_aa)

    def finish(self, folder: RunFolder, records: Sequence[Record], causes: Sequence[Cause]) -> Closing:
        """Writes the artifacts; nothing is said before they are there. Raises OSError, RecordError."""
        if self.is_aa:
            return Closing(code=self._finish_aa(records, [cause.code for cause in causes]), say=lambda: None)
        from harness.verdict_table import print_verdict
        from reports.gate.plan_file import FoundWrong, read_plan, write_plan
        from reports.gate.run_gate import judge_folder, write_judgement

        wrong = [FoundWrong(code=one.code, why=one.why) for one in (*causes, *self._code_changed())]
        write_plan(folder.path, read_plan(folder.path).model_copy(update={"found_wrong": wrong}))
        judgement = judge_folder(folder.path)
        tell_step_summary(write_judgement(folder.path, judgement))
        return Closing(code=judgement.outcome.exit_code, say=lambda: print_verdict(judgement, folder.path))

    def _code_changed(self) -> list[Cause]:
        """Each launch reads the code anew: if that changed meanwhile, what was compared has no name."""
        before, now = self.info.candidate.revision, current_revision()
        if before == now:
            return []
        why = f"the code changed during the run: it was {before}, is {now}"
        err.print(f"harness: {why}; the run is not valid", markup=False, soft_wrap=True)
        return [Cause(code=ExitCode.INVALID, why=why)]

    def _finish_aa(self, records: Sequence[Record], codes: Sequence[ExitCode]) -> ExitCode:
        path = floor_path(self.out_dir, self.info.fingerprint)
        keep_days = self.tier.floor_days if self.tier else 14.0
        try:
            floor, short = keep_floor(
                path,
                fingerprint=self.info.fingerprint,
                run_id=records[0].run_id if records else "",
                records=records,
                today=date.today(),
                tier=self.tier,
                keep_days=keep_days,
            )
        except RecordError as error:
            err.print(f"harness: no A/A run was kept: {one_line(error)}", markup=False, soft_wrap=True)
            return most_severe([*codes, ExitCode.INVALID])
        for line in short:
            err.print(f"no noise floor for {line}", markup=False, soft_wrap=True)
        cells = len({entry.cell_id for entry in floor.entries})
        for line in what_is_seen(floor, self.tier, self._required()) if self.tier is not None else ():
            err.print(line, markup=False, soft_wrap=True)
        err.print(f"noise floor of {cells} cells: {path}", markup=False, soft_wrap=True)
        if not short:
            return most_severe(codes)
        invalid = any(record.state is CellState.INVALID for record in records)
        return most_severe([*codes, ExitCode.INVALID if invalid else ExitCode.INCONCLUSIVE])
