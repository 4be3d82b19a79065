"""Runs a plan: every launch, every cell on it, one record each, and a report whatever happened."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.outcome import not_scored, with_scores
from harness.accuracy.preflight import scored_concurrency
from harness.accuracy.questions import QuestionsWriter
from harness.accuracy.scoring import Scorer
from harness.accuracy.spec import AccuracySpec, Prepared
from harness.cell import Cell
from harness.client.endpoint import EngineDied
from harness.client.load import LoadCancelled, LoadInterrupted, run_load
from harness.console import err
from harness.effective import effective_of_cell, without_counts
from harness.engine_code import EngineCode
from harness.environment import blocked_variables, fingerprint, harness_version
from harness.equivalence.referee import Referee
from harness.errors import ExitCode, most_severe, one_line
from harness.expectation import mismatches
from harness.experiment import Experiment
from harness.gated_run import Closing, GatedRun
from harness.launch import EngineProcess, ProcessesSurvived, Ready
from harness.measurement import Measurement
from harness.plan import Launch
from harness.preflight import Preflight, load_spec
from harness.progress import Progress
from harness.recording import (
    EXIT_OF_STATE,
    STATE_OF_DEATH,
    Outcome,
    Recorder,
    judge_measurement,
    judge_partial,
)
from harness.records import CellState, Record, RecordError, RunInfo
from harness.request_times import MeasurementError
from harness.requests_table import FILE_NAME, RequestsWriter
from harness.result_table import print_result
from harness.resuming import Resumed
from harness.run_folder import ResultsUnwritable, RunFolder, now_text
from harness.signals import allowed, deferred, interruptible, shielded
from paths.api import UserError


def run_plan(
    launches: Sequence[Launch],
    *,
    preflight: Preflight,
    config_dirs: Sequence[Path],
    command: str,
    experiment: Experiment | None = None,
    prompts: Mapping[AccuracySpec, Sequence[Prepared]] | None = None,
    gate: GatedRun | None = None,
    resumed: Resumed | None = None,
) -> ExitCode:
    """Run everything and return the exit code. `prompts`: what is known of those that accuracy will ask.

    `gate`: the comparison that the launches are the first part of. `resumed`: the run that is continued.
    Raises UserError, with nothing left behind, when the results folder cannot be written.
    """
    with interruptible():
        out_dir = launches[0].cells[0].config.out_dir
        folder = resumed.folder if resumed is not None else RunFolder.create(out_dir)
        run = _Run(
            launches, folder, preflight, config_dirs, command, experiment, prompts or {}, gate, resumed
        )
        try:
            run.prepare()
        except OSError as error:
            run.give_up()
            raise UserError(
                f"out_dir={out_dir}: cannot be written ({error.strerror}); choose a folder with room"
            ) from error
        except BaseException:  # a refusal, or Ctrl-C while a baseline is checked out
            run.give_up()
            raise
        try:
            return run.execute()
        finally:
            if gate is not None:
                gate.code.remove(folder.path)


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """One started engine of a launch; the first has the launch's id, one after a death has a suffix."""

    launch: Launch
    launch_id: str
    engine: EngineProcess
    log: str


@dataclass(frozen=True, kw_only=True)
class _End:
    """How the load of one cell ended."""

    outcome: Outcome
    measurement: Measurement | None = None
    alive: bool = True  # the engine can serve the next cell
    interrupted: bool = False
    requests_kept: bool = False


class _Run:
    def __init__(
        self,
        launches: Sequence[Launch],
        folder: RunFolder,
        preflight: Preflight,
        config_dirs: Sequence[Path],
        command: str,
        experiment: Experiment | None,
        prompts: Mapping[AccuracySpec, Sequence[Prepared]],
        gate: GatedRun | None,
        resumed: Resumed | None,
    ) -> None:
        self._launches = list(launches)
        self._gate = gate
        self._resumed = resumed
        self._baseline_code: EngineCode | None = None
        self._folder = folder
        self._workloads = preflight.workloads
        self._unsupported = preflight.unsupported
        self._config_dirs = config_dirs
        self._recorder = Recorder(run_id=folder.run_id, config_dirs=config_dirs)
        self._requests = RequestsWriter(folder.path)
        self._questions = QuestionsWriter(folder.path)
        self._scorer = Scorer(
            writer=self._questions, run_id=folder.run_id, parent_environment=os.environ, prepared=prompts
        )
        self._referee = Referee(
            arms=preflight.arms,
            prompts=launches[0].cells[0].config.equivalence_prompts,
            source=lambda arm: self._workloads[arm.launch.launch_id].common_source(arm.cell),
        )
        self._records: list[Record] = list(resumed.records) if resumed is not None else []
        self._codes: list[ExitCode] = [
            EXIT_OF_STATE[record.state] for record in self._records if not self._is_excused(record.state)
        ]
        self._progress = Progress(sum(len(launch.cells) for launch in launches) - len(self._records))
        self._user_error: str | None = None
        self._next_request_id = 0
        self._current = launches[0].cells[0]  # what is being measured, or comes next
        self._info = RunInfo(
            run_id=folder.run_id,
            command=command,
            started_at=now_text(),
            harness_version=harness_version(),
            environment=fingerprint(blocked_variables(os.environ)),
            experiment=experiment,
            comparison=gate.info if gate is not None else None,
            plan=[launch.describe() for launch in launches],
        )
        if resumed is not None:
            went_on = [*resumed.info.resumed_at, now_text()]
            before = {"started_at": resumed.info.started_at, "resumed_at": went_on}
            self._info = self._info.model_copy(update=before)

    def prepare(self) -> None:
        """What is known before anything starts. Raises OSError, or UserError for a baseline without code."""
        if self._resumed is not None:
            self._next_request_id = self._resumed.clear()
        if self._gate is not None:
            self._baseline_code = self._gate.code.prepare(self._folder.path)
            self._gate.prepare(self._folder)
        self._folder.write_info(self._info)
        for launch in self._launches:
            for cell in launch.cells:
                self._folder.write_cell_config(cell)

    def give_up(self) -> None:
        """Leave nothing behind of a run that did not begin."""
        if self._gate is not None:
            self._gate.code.remove(self._folder.path)
        if self._resumed is None:
            self._folder.discard()

    def execute(self) -> ExitCode:
        with shielded():  # however the launches end, the run gets its last rows and its report
            try:
                with allowed(), self._progress:
                    pending = list(self._launches)
                    while pending:
                        for launch in pending:
                            self._run_launch(launch)
                        pending = self._next_look()
            except KeyboardInterrupt:
                self._skip_rest("interrupted", ExitCode.INTERRUPTED)
            except ProcessesSurvived as error:
                self._skip_rest(str(error), ExitCode.INFRASTRUCTURE)
            except ResultsUnwritable as error:
                self._lose(error)
            return self._finish()

    def _next_look(self) -> list[Launch]:
        """Further launches of a comparison that is not decided; they join the plan."""
        if self._gate is None:
            return []
        try:
            more = self._gate.more(self._folder, self._records)
        except RecordError as error:
            self._lose(error)
            return []
        if more:
            self._launches += more
            self._progress.expect(sum(len(launch.cells) for launch in more))
            self._info.plan.extend(launch.describe() for launch in more)
            try:
                self._folder.write_info(self._info)
            except OSError as error:
                raise ResultsUnwritable(error) from error
        return more

    def _is_excused(self, state: CellState) -> bool:
        return self._gate is not None and self._gate.excuses(state)

    def _run_launch(self, launch: Launch) -> None:
        """All cells of a launch; after a death the rest gets a fresh engine."""
        reason = self._unsupported.get(launch.launch_id)
        if reason is not None:
            outcome = Outcome(state=CellState.UNSUPPORTED, reason=reason)
            for cell in self._without_record(launch):
                self._save(outcome, launch, launch.launch_id, cell)
            return
        number = 1 + self._folder.attempts(launch.launch_id)
        while left := self._without_record(launch):
            launch_id = launch.launch_id if number == 1 else f"{launch.launch_id}.{number}"
            place = self._folder.launch_folder(launch_id, left[0].engine.path)
            self._current = left[0]
            try:
                self._attempt(launch, left, launch_id, place)
            except (ProcessesSurvived, ResultsUnwritable):
                raise
            except Exception as error:  # noqa: BLE001
                # the one place that catches everything: a fault of the harness costs a cell, never the run
                self._record_fault(launch, launch_id, place, error)
            number += 1

    def _without_record(self, launch: Launch) -> list[Cell]:
        seen = {(record.order, record.cell_id) for record in self._records}
        return [cell for cell in launch.cells if (launch.order, cell.cell_id) not in seen]

    def _record_fault(self, launch: Launch, launch_id: str, place: Path, error: Exception) -> None:
        """The traceback goes to a log, the reason into the row of the cell that was being measured."""
        log = self._folder.write_fault(place, error)
        reason = f"fault in the harness: {type(error).__name__}: {error}; traceback in {log.name}"
        err.print(f"{launch_id}: {one_line(reason)}", markup=False, soft_wrap=True)
        cell = self._current
        if cell in self._without_record(launch):
            outcome = Outcome(state=CellState.FAILED, reason=reason)
            self._save(outcome, launch, launch_id, cell, log=self._folder.relative(log))
        else:  # its row is written; what failed came after it
            self._codes.append(ExitCode.INFRASTRUCTURE)

    def _attempt(self, launch: Launch, cells: Sequence[Cell], launch_id: str, place: Path) -> None:
        """Start an engine and measure until all cells have a record or the engine has died."""
        engine = EngineProcess(
            cells[0].engine,
            folder=place,
            cache_dir=self._cache_of(launch, launch_id),
            code=self._baseline_code if launch.arm == "baseline" else None,
            parent_environment=os.environ,
            sys_path=[str(folder) for folder in self._config_dirs],
            timeout_s=cells[0].timeout_s,
        )
        attempt = _Attempt(
            launch=launch, launch_id=launch_id, engine=engine, log=self._folder.relative(engine.log)
        )
        with engine:
            try:
                ready = engine.start(self._progress.engine_says(launch_id, cells[0].engine.path))
            except UserError as error:
                self._user_error = self._user_error or str(error)
                outcome = Outcome(state=CellState.FAILED, reason=str(error))
                return self._save_all(attempt, cells, outcome, ExitCode.USAGE)
            except EngineDied as error:
                outcome = Outcome(state=STATE_OF_DEATH[error.kind], reason=f"at start-up: {error.reason}")
                return self._save_all(attempt, cells, outcome)
            wrong = mismatches(cells[0].config.path, cells[0].engine, ready.effective, measured=False)
            wrong += engine.code_mismatch(ready.effective)
            if wrong:
                outcome = Outcome(
                    state=CellState.PATH_MISMATCH,
                    reason="; ".join(wrong),
                    effective=without_counts(ready.effective),
                )
                return self._save_all(attempt, cells, outcome, ready=ready)
            return self._measure_cells(attempt, ready, cells)

    def _cache_of(self, launch: Launch, launch_id: str) -> Path:
        """Where compilers keep their results: the run's folder, or in a comparison one of the arm's own.

        Where cold start-up is gated every launch has its own, as each pair must show it.
        """
        if self._gate is None or launch.arm is None:
            return self._folder.cache
        place = self._folder.cache / launch.arm
        return place / launch_id if self._gate.cold_starts else place

    def _measure_cells(self, attempt: _Attempt, ready: Ready, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self._current, started_at = cell, now_text()
            with deferred():  # from here on Ctrl-C ends the load, and nothing that comes after it
                end = self._score(attempt, ready, cell, self._measure(attempt, ready, cell))
                end = self._compare(attempt, ready, cell, end)
                self._save(
                    end.outcome,
                    attempt.launch,
                    attempt.launch_id,
                    cell,
                    started_at=started_at,
                    ready=ready,
                    log=attempt.log,
                )
                if end.measurement is not None and not end.requests_kept:
                    self._keep_requests(end.measurement, attempt, cell)
            if end.interrupted:
                raise KeyboardInterrupt
            if not end.alive:
                attempt.engine.close(grace_s=0.0)
                return

    def _measure(self, attempt: _Attempt, ready: Ready, cell: Cell) -> _End:
        """One cell's load, judged."""
        source = self._workloads[attempt.launch.launch_id].source(cell)
        spec = load_spec(cell, first_request_id=self._next_request_id)
        says, interrupted = self._progress.load_says(cell), False
        try:
            with allowed():
                before = ready.endpoint.effective()
            measurement = run_load(ready.endpoint, source, spec, on_progress=says, interruptions=allowed)
        except LoadInterrupted as died:
            outcome = judge_partial(died.measurement, cell, STATE_OF_DEATH[died.kind], died.reason)
            return _End(outcome=outcome, measurement=died.measurement, alive=False)
        except EngineDied as died:
            outcome = Outcome(state=STATE_OF_DEATH[died.kind], reason=f"before the load: {died.reason}")
            return _End(outcome=outcome, alive=False)
        except LoadCancelled as cancelled:
            measurement, interrupted = cancelled.measurement, True
            if not cancelled.finished:
                outcome = judge_partial(measurement, cell, CellState.SKIPPED, "interrupted")
                return _End(outcome=outcome, measurement=measurement, alive=False, interrupted=True)
        try:
            after = ready.endpoint.effective()
        except EngineDied as died:
            outcome = judge_partial(
                measurement, cell, STATE_OF_DEATH[died.kind], f"after the load: {died.reason}"
            )
            return _End(outcome=outcome, measurement=measurement, alive=False, interrupted=interrupted)
        outcome = judge_measurement(measurement, cell, effective_of_cell(before, after))
        return _End(outcome=outcome, measurement=measurement, interrupted=interrupted)

    def _score(self, attempt: _Attempt, ready: Ready, cell: Cell, end: _End) -> _End:
        """The answers of this engine, where it is this cell that carries them."""
        concurrency = scored_concurrency(attempt.launch.cells, cell)
        if concurrency is None or end.interrupted or not end.alive:
            return end
        if not end.outcome.state.has_numbers:
            return dataclasses.replace(end, outcome=not_scored(end.outcome))
        if end.measurement is not None:  # scoring takes minutes in which a crash must cost nothing measured
            self._keep_requests(end.measurement, attempt, cell)
        scored = self._scorer.score(
            ready.endpoint,
            cell,
            concurrency=concurrency,
            launch_id=attempt.launch_id,
            folder=attempt.engine.log.parent,
            on_progress=self._progress.load_says(cell),
            on_score=lambda score: self._progress.scored(cell, score),
        )
        if scored.failed and not scored.interrupted:
            self._codes.append(ExitCode.INFRASTRUCTURE)
        return dataclasses.replace(
            end,
            outcome=with_scores(end.outcome, scored),
            alive=scored.died is None,
            interrupted=scored.interrupted,
            requests_kept=True,
        )

    def _compare(self, attempt: _Attempt, ready: Ready, cell: Cell, end: _End) -> _End:
        """The answers of this arm beside the reference's, after the last load of its launch."""
        arm = self._referee.arms.get(attempt.launch.launch_id)
        if arm is None or cell is not arm.cell or end.interrupted or not end.alive:
            return end
        try:
            with allowed():
                judged = self._referee.judge(ready.endpoint, arm, self._progress.load_says(cell))
        except KeyboardInterrupt:
            return dataclasses.replace(end, interrupted=True)
        if judged.equivalence.reason is not None:
            self._codes.append(ExitCode.INFRASTRUCTURE)
        outcome = dataclasses.replace(end.outcome, equivalence=judged.equivalence)
        return dataclasses.replace(end, outcome=outcome, alive=judged.died is None)

    def _keep_requests(self, measurement: Measurement, attempt: _Attempt, cell: Cell) -> None:
        self._next_request_id += len(measurement.requests)
        try:
            self._requests.add(
                measurement,
                run_id=self._folder.run_id,
                launch_id=attempt.launch_id,
                cell_id=cell.cell_id,
                arm_id=cell.arm_id,
            )
        except MeasurementError as error:  # the cell's record is INVALID and says so
            text = f"{cell.label}: its requests are not in {FILE_NAME}: {error}"
            err.print(text, markup=False, soft_wrap=True)

    def _save_all(
        self,
        attempt: _Attempt,
        cells: Sequence[Cell],
        outcome: Outcome,
        code: ExitCode | None = None,
        *,
        ready: Ready | None = None,
    ) -> None:
        """The same outcome for all cells of an engine that never served."""
        for cell in cells:
            launch, launch_id = attempt.launch, attempt.launch_id
            self._save(outcome, launch, launch_id, cell, log=attempt.log, code=code, ready=ready)

    def _save(
        self,
        outcome: Outcome,
        launch: Launch,
        launch_id: str,
        cell: Cell,
        *,
        started_at: str | None = None,
        ready: Ready | None = None,
        log: str | None = None,
        code: ExitCode | None = None,
    ) -> None:
        """Write the record at once, so that whatever happens next costs nothing already measured."""
        record = self._recorder.record(
            outcome,
            launch=launch,
            launch_id=launch_id,
            cell=cell,
            started_at=started_at or now_text(),
            ready=ready,
            log=log,
        )
        with deferred():  # a row that is in the file is known, and is not written again
            self._folder.append(record)
            self._records.append(record)
            if code is not None or not self._is_excused(outcome.state):
                self._codes.append(EXIT_OF_STATE[outcome.state] if code is None else code)
            self._progress.cell_done(record)

    def _skip_rest(self, reason: str, code: ExitCode) -> None:
        """A row for every cell that has none."""
        self._codes.append(code)
        outcome = Outcome(state=CellState.SKIPPED, reason=f"{reason} before this cell was measured")
        try:
            for launch in self._launches:
                for cell in self._without_record(launch):
                    self._save(outcome, launch, launch.launch_id, cell)
        except ResultsUnwritable as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Something of the results could not be written: one line, and an exit code that says so."""
        self._codes.append(ExitCode.INFRASTRUCTURE)
        err.print(f"harness: {one_line(error)}", markup=False, soft_wrap=True)

    def _finish(self) -> ExitCode:
        """Requests, run.json, report, table."""
        self._folder.remove_cache()
        if self._user_error is not None and set(self._codes) == {ExitCode.USAGE}:
            if self._resumed is None:
                self._folder.discard()
            raise UserError(self._user_error)
        from reports.html import write_report  # plotting: only when there is something to report

        try:
            self._requests.finish()
            self._questions.finish()
            self._write_end()
            closing = self._close_gate()
            report = write_report(self._folder.path)
            print_result(self._records, report)
            if closing is not None:
                closing.say()
        except OSError as error:
            self._lose(ResultsUnwritable(error))
            with contextlib.suppress(OSError):  # said in the line above
                self._write_end()
        return most_severe(self._codes)

    def _close_gate(self) -> Closing | None:
        """Verdict and artifacts of a comparison. Raises OSError."""
        if self._gate is None:
            return None
        try:
            closing = self._gate.finish(self._folder, self._records, self._codes)
        except RecordError as error:
            self._lose(error)
            return None
        self._codes.append(closing.code)
        self._write_end()
        return closing

    def _write_end(self) -> None:
        code = most_severe(self._codes)
        self._info = self._info.model_copy(update={"finished_at": now_text(), "exit_code": int(code)})
        self._folder.write_info(self._info)
