"""One cell on a running engine: its load, the scores that it carries, its answers beside the reference's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.outcome import not_scored, with_scores
from harness.accuracy.preflight import scored_concurrency
from harness.accuracy.scoring import Scorer
from harness.cell import Cell
from harness.client.endpoint import EngineDied
from harness.client.load import LoadCancelled, LoadInterrupted, run_load
from harness.effective import effective_of_cell
from harness.equivalence.referee import Referee
from harness.errors import ExitCode
from harness.launch import Ready
from harness.measurement import Measurement
from harness.plan import Launch
from harness.preflight import Workloads, load_spec
from harness.progress import Progress
from harness.recording import STATE_OF_DEATH, Outcome, judge_measurement, judge_partial
from harness.records import CellState
from harness.results import Results
from harness.signals import allowed


@dataclass(frozen=True, kw_only=True)
class Serving:
    """An engine that is ready, and whose launch it serves."""

    launch: Launch
    launch_id: str
    ready: Ready
    folder: Path


@dataclass(frozen=True, kw_only=True)
class End:
    """How it ended for one cell."""

    outcome: Outcome
    measurement: Measurement | None = None
    alive: bool = True  # the engine can serve the next cell
    interrupted: bool = False
    requests_kept: bool = False


@dataclass(frozen=True, kw_only=True)
class CellRunner:
    """Knows the run. `workloads` by launch id."""

    workloads: Mapping[str, Workloads]
    scorer: Scorer
    referee: Referee
    results: Results
    progress: Progress

    def run(self, serving: Serving, cell: Cell) -> End:
        """Everything that is asked of one cell. Ctrl-C ends it, too, and is told in `End`."""
        end = self._score(serving, cell, self._measure(serving, cell))
        return self._compare(serving, cell, end)

    def _measure(self, serving: Serving, cell: Cell) -> End:
        """The load, judged."""
        endpoint = serving.ready.endpoint
        source = self.workloads[serving.launch.launch_id].source(cell)
        spec = load_spec(cell, first_request_id=self.results.next_request_id)
        says, interrupted = self.progress.load_says(cell), False
        try:
            with allowed():
                before = endpoint.effective()
            measurement = run_load(endpoint, source, spec, on_progress=says, interruptions=allowed)
        except LoadInterrupted as died:
            outcome = judge_partial(died.measurement, cell, STATE_OF_DEATH[died.kind], died.reason)
            return End(outcome=outcome, measurement=died.measurement, alive=False)
        except EngineDied as died:
            outcome = Outcome(state=STATE_OF_DEATH[died.kind], reason=f"before the load: {died.reason}")
            return End(outcome=outcome, alive=False)
        except LoadCancelled as cancelled:
            measurement, interrupted = cancelled.measurement, True
            if not cancelled.finished:
                outcome = judge_partial(measurement, cell, CellState.SKIPPED, "interrupted")
                return End(outcome=outcome, measurement=measurement, alive=False, interrupted=True)
        try:
            after = endpoint.effective()
        except EngineDied as died:
            outcome = judge_partial(
                measurement, cell, STATE_OF_DEATH[died.kind], f"after the load: {died.reason}"
            )
            return End(outcome=outcome, measurement=measurement, alive=False, interrupted=interrupted)
        outcome = judge_measurement(measurement, cell, effective_of_cell(before, after))
        return End(outcome=outcome, measurement=measurement, interrupted=interrupted)

    def _score(self, serving: Serving, cell: Cell, end: End) -> End:
        """The answers of this engine, where it is this cell that carries them."""
        concurrency = scored_concurrency(serving.launch.cells, cell) if serving.launch.scores else None
        if concurrency is None or end.interrupted or not end.alive:
            return end
        if not end.outcome.state.has_numbers:
            return dataclasses.replace(end, outcome=not_scored(end.outcome))
        if end.measurement is not None:  # scoring takes minutes in which a crash must cost nothing measured
            self.results.keep_requests(end.measurement, launch_id=serving.launch_id, cell=cell)
        scored = self.scorer.score(
            serving.ready.endpoint,
            cell,
            concurrency=concurrency,
            launch_id=serving.launch_id,
            folder=serving.folder,
            on_progress=self.progress.load_says(cell),
            on_score=lambda score: self.progress.scored(cell, score),
        )
        if scored.fault is not None and not scored.interrupted:
            self._blame(serving, cell, "its answers were not scored", scored.fault)
        return dataclasses.replace(
            end,
            outcome=with_scores(end.outcome, scored),
            alive=scored.died is None,
            interrupted=scored.interrupted,
            requests_kept=True,
        )

    def _compare(self, serving: Serving, cell: Cell, end: End) -> End:
        """The answers of this arm beside the reference's, after the last load of its launch."""
        arm = self.referee.arms.get(serving.launch.launch_id)
        if arm is None or cell is not arm.cell or end.interrupted or not end.alive:
            return end
        try:
            with allowed():
                judged = self.referee.judge(serving.ready.endpoint, arm, self.progress.load_says(cell))
        except KeyboardInterrupt:
            return dataclasses.replace(end, interrupted=True)
        if judged.equivalence.reason is not None:
            self._blame(serving, cell, "its answers were not compared", judged.equivalence.reason)
        outcome = dataclasses.replace(end.outcome, equivalence=judged.equivalence)
        return dataclasses.replace(end, outcome=outcome, alive=judged.died is None)

    def _blame(self, serving: Serving, cell: Cell, what: str, why: str) -> None:
        self.results.blame(ExitCode.INFRASTRUCTURE, f"{serving.launch_id}, {cell.label}: {what}: {why}")
