"""Runs a plan: every launch, every cell on it, one record each, and a report whatever happened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cell import Cell
from harness.client.endpoint import EngineDied
from harness.client.load import LoadCancelled, LoadInterrupted, run_load
from harness.environment import blocked_variables, fingerprint, harness_version
from harness.errors import ExitCode, most_severe
from harness.expectation import mismatches
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
from harness.records import CellState, Record, RunInfo
from harness.requests_table import RequestsWriter
from harness.result_table import print_result
from harness.run_folder import RunFolder, now_text
from harness.signals import interruptible, uninterrupted
from paths.api import UserError


def run_plan(
    launches: Sequence[Launch], *, preflight: Preflight, config_dirs: Sequence[Path], command: str
) -> ExitCode:
    """Run everything and return the exit code.

    Raises UserError, with nothing left behind, when the results folder cannot be written.
    """
    folder = RunFolder.create(launches[0].cells[0].config.out_dir)
    run = _Run(launches, folder, preflight, config_dirs, command)
    with interruptible():
        return run.execute()


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """One started engine of a launch; the first has the launch's id, one after a death has a suffix."""

    launch: Launch
    launch_id: str
    engine: EngineProcess
    log: str


class _Run:
    def __init__(
        self,
        launches: Sequence[Launch],
        folder: RunFolder,
        preflight: Preflight,
        config_dirs: Sequence[Path],
        command: str,
    ) -> None:
        self._launches = launches
        self._folder = folder
        self._workloads = preflight.workloads
        self._unsupported = preflight.unsupported
        self._config_dirs = config_dirs
        self._recorder = Recorder(run_id=folder.run_id, config_dirs=config_dirs)
        self._requests = RequestsWriter(folder.path)
        self._progress = Progress(sum(len(launch.cells) for launch in launches))
        self._records: list[Record] = []
        self._codes: list[ExitCode] = []
        self._user_error: str | None = None
        self._next_request_id = 0
        self._info = RunInfo(
            run_id=folder.run_id,
            command=command,
            started_at=now_text(),
            harness_version=harness_version(),
            environment=fingerprint(blocked_variables(os.environ)),
            plan=[launch.describe() for launch in launches],
        )

    def execute(self) -> ExitCode:
        self._folder.write_info(self._info)
        for launch in self._launches:
            for cell in launch.cells:
                self._folder.write_cell_config(cell)
        try:
            with self._progress:
                for launch in self._launches:
                    self._run_launch(launch)
        except KeyboardInterrupt:
            return self._end_early("interrupted", ExitCode.INTERRUPTED)
        except ProcessesSurvived as error:
            return self._end_early(str(error), ExitCode.INFRASTRUCTURE)
        with uninterrupted():
            return self._finish()

    def _end_early(self, reason: str, code: ExitCode) -> ExitCode:
        with uninterrupted():
            self._codes.append(code)
            self._skip_rest(reason)
            return self._finish()

    def _run_launch(self, launch: Launch) -> None:
        """All cells of a launch; after a death the rest gets a fresh engine."""
        reason = self._unsupported.get(launch.launch_id)
        if reason is not None:
            for cell in launch.cells:
                self._save(
                    Outcome(state=CellState.UNSUPPORTED, reason=reason), launch, launch.launch_id, cell
                )
            return
        left, number = launch.cells, 1
        while left:
            left = left[self._attempt(launch, left, number) :]
            number += 1

    def _attempt(self, launch: Launch, cells: Sequence[Cell], number: int) -> int:
        """Start an engine and measure; returns how many of `cells` have a record now, at least one."""
        launch_id = launch.launch_id if number == 1 else f"{launch.launch_id}.{number}"
        place = self._folder.launch_folder(launch_id, cells[0].engine.path)
        engine = EngineProcess(
            cells[0].engine,
            folder=place,
            cache_dir=self._folder.cache,
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
            if wrong:
                outcome = Outcome(
                    state=CellState.PATH_MISMATCH, reason="; ".join(wrong), effective=ready.effective
                )
                return self._save_all(attempt, cells, outcome)
            return self._measure_cells(attempt, ready, cells)

    def _measure_cells(self, attempt: _Attempt, ready: Ready, cells: Sequence[Cell]) -> int:
        for done, cell in enumerate(cells, start=1):
            started_at = now_text()
            outcome, alive = self._measure(attempt, ready, cell)
            self._save(
                outcome,
                attempt.launch,
                attempt.launch_id,
                cell,
                started_at=started_at,
                ready=ready,
                log=attempt.log,
            )
            if not alive:
                attempt.engine.close(grace_s=0.0)
                return done
        return len(cells)

    def _measure(self, attempt: _Attempt, ready: Ready, cell: Cell) -> tuple[Outcome, bool]:
        """One cell's load; returns its outcome and whether the engine lives on."""
        source = self._workloads[attempt.launch.launch_id].source(cell)
        spec = load_spec(cell, first_request_id=self._next_request_id)
        try:
            measurement = run_load(ready.endpoint, source, spec, on_progress=self._progress.load_says(cell))
        except LoadInterrupted as died:
            self._keep_requests(died.measurement, attempt, cell)
            return judge_partial(died.measurement, STATE_OF_DEATH[died.kind], died.reason), False
        except LoadCancelled as cancelled:
            self._keep_requests(cancelled.measurement, attempt, cell)
            outcome = judge_partial(cancelled.measurement, CellState.SKIPPED, "interrupted")
            self._save(outcome, attempt.launch, attempt.launch_id, cell, ready=ready, log=attempt.log)
            raise
        self._keep_requests(measurement, attempt, cell)
        try:
            effective = ready.endpoint.effective()
        except EngineDied as died:
            reason = f"after the load: {died.reason}"
            return judge_partial(measurement, STATE_OF_DEATH[died.kind], reason), False
        return judge_measurement(measurement, cell, effective), True

    def _keep_requests(self, measurement: Measurement, attempt: _Attempt, cell: Cell) -> None:
        self._next_request_id += len(measurement.requests)
        self._requests.add(
            measurement,
            run_id=self._folder.run_id,
            launch_id=attempt.launch_id,
            cell_id=cell.cell_id,
            arm_id=cell.arm_id,
        )

    def _save_all(
        self, attempt: _Attempt, cells: Sequence[Cell], outcome: Outcome, code: ExitCode | None = None
    ) -> int:
        """The same outcome for all cells of an engine that never served; returns their number."""
        for cell in cells:
            self._save(outcome, attempt.launch, attempt.launch_id, cell, log=attempt.log, code=code)
        return len(cells)

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
        self._folder.append(record)
        self._records.append(record)
        self._codes.append(EXIT_OF_STATE[outcome.state] if code is None else code)
        self._progress.cell_done(record)

    def _skip_rest(self, reason: str) -> None:
        """A row for every cell that has none."""
        seen = {(record.order, record.cell_id) for record in self._records}
        for launch in self._launches:
            for cell in launch.cells:
                if (launch.order, cell.cell_id) not in seen:
                    text = f"{reason} before this cell was measured"
                    outcome = Outcome(state=CellState.SKIPPED, reason=text)
                    self._save(outcome, launch, launch.launch_id, cell)

    def _finish(self) -> ExitCode:
        """Requests, run.json, report, table."""
        self._folder.remove_cache()
        if self._user_error is not None and set(self._codes) == {ExitCode.USAGE}:
            self._folder.discard()
            raise UserError(self._user_error)
        code = most_severe(self._codes)
        self._requests.finish()
        self._info = self._info.model_copy(update={"finished_at": now_text(), "exit_code": int(code)})
        self._folder.write_info(self._info)
        from reports.html import write_report  # pandas and plotting: only when there is something to report

        report = write_report(self._folder.path)
        print_result(self._records, report)
        return code
