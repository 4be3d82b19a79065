"""What a run has to show so far: its rows, its run.json, and the exit codes that they add up to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from harness.accuracy.questions import QuestionsWriter
from harness.cell import Cell
from harness.console import err
from harness.environment import blocked_variables, fingerprint, harness_version
from harness.errors import Cause, ExitCode, most_severe, one_line
from harness.experiment import Experiment
from harness.gated_run import GatedRun
from harness.launch import Ready
from harness.measurement import Measurement
from harness.plan import Launch
from harness.progress import Progress
from harness.recording import EXIT_OF_STATE, Outcome, Recorder
from harness.records import CellState, Record, RunInfo
from harness.request_times import MeasurementError
from harness.requests_table import FILE_NAME, RequestsWriter
from harness.resuming import Resumed
from harness.run_folder import ResultsUnwritable, RunFolder, now_text
from harness.signals import deferred


def begin_info(
    run_id: str,
    *,
    command: str,
    launches: Sequence[Launch],
    experiment: Experiment | None,
    gate: GatedRun | None,
    resumed: Resumed | None,
) -> RunInfo:
    """What run.json says when a run begins, or goes on."""
    info = RunInfo(
        run_id=run_id,
        command=command,
        started_at=now_text(),
        harness_version=harness_version(),
        environment=fingerprint(blocked_variables(os.environ)),
        experiment=experiment,
        comparison=gate.info if gate is not None else None,
        plan=[launch.describe() for launch in launches],
    )
    if resumed is None:
        return info
    went_on = [*resumed.info.resumed_at, now_text()]
    return info.model_copy(update={"started_at": resumed.info.started_at, "resumed_at": went_on})


class Results:
    """Of one run. A row is in its file as soon as it is known.

    `excuses`: whether a cell in this state counts only through the verdict of a comparison.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        info: RunInfo,
        recorder: Recorder,
        progress: Progress,
        excuses: Callable[[CellState], bool],
        kept: Sequence[Record] = (),
    ) -> None:
        self.folder = folder
        self.records = list(kept)
        self.causes = [_cause(record) for record in kept if not excuses(record.state)]
        self.questions = QuestionsWriter(folder.path)
        self.next_request_id = 0
        self.user_error: str | None = None  # the first that an engine found at its start
        self._info = info
        self._recorder = recorder
        self._progress = progress
        self._excuses = excuses
        self._requests = RequestsWriter(folder.path)

    @property
    def exit_code(self) -> ExitCode:
        return most_severe(cause.code for cause in self.causes)

    def blame(self, code: ExitCode, why: str) -> None:
        """The run ends with `code`, or with what is worse."""
        self.causes.append(Cause(code=code, why=one_line(why)))

    def missing(self, launch: Launch) -> list[Cell]:
        """Cells of a launch that have no record."""
        seen = {(record.order, record.cell_id) for record in self.records}
        return [cell for cell in launch.cells if (launch.order, cell.cell_id) not in seen]

    def save(
        self,
        outcome: Outcome,
        *,
        launch: Launch,
        launch_id: str,
        cell: Cell,
        started_at: str | None = None,
        ready: Ready | None = None,
        log: str | None = None,
        code: ExitCode | None = None,
    ) -> None:
        """Write the record at once, so that whatever happens next costs nothing already measured.

        `code`: another than that of the state. Raises ResultsUnwritable.
        """
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
            self.folder.append(record)
            self.records.append(record)
            if code is not None or not self._excuses(outcome.state):
                self.causes.append(_cause(record, code))
            self._progress.cell_done(record)

    def save_missing(self, outcome: Outcome, launch: Launch) -> None:
        """The same outcome for all cells of a launch that have none. Raises ResultsUnwritable."""
        for cell in self.missing(launch):
            self.save(outcome, launch=launch, launch_id=launch.launch_id, cell=cell)

    def keep_requests(self, measurement: Measurement, *, launch_id: str, cell: Cell) -> None:
        """A row for every request of a load."""
        self.next_request_id += len(measurement.requests)
        try:
            self._requests.add(
                measurement,
                run_id=self.folder.run_id,
                launch_id=launch_id,
                cell_id=cell.cell_id,
                arm_id=cell.arm_id,
            )
        except MeasurementError as error:  # the cell's record is INVALID and says so
            text = f"{cell.label}: its requests are not in {FILE_NAME}: {error}"
            err.print(text, markup=False, soft_wrap=True)

    def lose(self, error: Exception) -> None:
        """Something of the results could not be written: one line, and an exit code that says so."""
        self.blame(ExitCode.INFRASTRUCTURE, str(error))
        err.print(f"harness: {one_line(error)}", markup=False, soft_wrap=True)

    def expect(self, launches: Sequence[Launch]) -> None:
        """Further launches join the plan. Raises ResultsUnwritable."""
        self._progress.expect(sum(len(launch.cells) for launch in launches))
        self._info.plan.extend(launch.describe() for launch in launches)
        try:
            self.write_info()
        except OSError as error:
            raise ResultsUnwritable(error) from error

    def write_info(self) -> None:
        """run.json as it stands. Raises OSError."""
        self.folder.write_info(self._info)

    def write_end(self) -> None:
        """run.json with the end of the run and its exit code, as it is now. Raises OSError."""
        update = {"finished_at": now_text(), "exit_code": int(self.exit_code)}
        self._info = self._info.model_copy(update=update)
        self.write_info()

    def finish_tables(self) -> None:
        """The parts of each table into one file. Raises OSError."""
        self._requests.finish()
        self.questions.finish()


def _cause(record: Record, code: ExitCode | None = None) -> Cause:
    """What a record asks for; `code`: another than that of its state."""
    why = f"{record.launch_id}, {record.label}: {record.state}"
    return Cause(
        code=EXIT_OF_STATE[record.state] if code is None else code,
        why=one_line(f"{why}: {record.reason}" if record.reason else why),
    )
