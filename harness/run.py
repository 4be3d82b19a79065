"""Runs a plan: every launch, every cell on it, one record each, and a report whatever happened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from harness.accuracy.scoring import Scorer
from harness.accuracy.spec import PreparedPrompts
from harness.attempt import Attempt
from harness.cell import Cell
from harness.cell_run import CellRunner
from harness.console import err
from harness.engine_code import EngineCode
from harness.equivalence.referee import Referee
from harness.errors import ExitCode, one_line
from harness.experiment import Experiment
from harness.gated_run import Closing, GatedRun
from harness.launch import ProcessesSurvived
from harness.plan import Launch
from harness.preflight import Preflight
from harness.progress import Progress
from harness.recording import Outcome, Recorder
from harness.records import CellState, RecordError
from harness.result_table import print_result
from harness.results import Results, begin_info
from harness.resuming import Resumed
from harness.run_folder import ResultsUnwritable, RunFolder
from harness.signals import allowed, interruptible, shielded
from paths.api import UserError


def run_plan(
    launches: Sequence[Launch],
    *,
    preflight: Preflight,
    config_dirs: Sequence[Path],
    command: str,
    experiment: Experiment | None = None,
    prompts: PreparedPrompts | None = None,
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
            launches,
            folder=folder,
            preflight=preflight,
            config_dirs=config_dirs,
            command=command,
            experiment=experiment,
            prompts=prompts or {},
            gate=gate,
            resumed=resumed,
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


class _Run:
    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        folder: RunFolder,
        preflight: Preflight,
        config_dirs: Sequence[Path],
        command: str,
        experiment: Experiment | None,
        prompts: PreparedPrompts,
        gate: GatedRun | None,
        resumed: Resumed | None,
    ) -> None:
        self._launches = list(launches)
        self._folder = folder
        self._unsupported = preflight.unsupported
        self._config_dirs = config_dirs
        self._gate = gate
        self._resumed = resumed
        self._baseline_code: EngineCode | None = None
        kept = resumed.records if resumed is not None else []
        self._progress = Progress(sum(len(launch.cells) for launch in launches) - len(kept))
        self._results = Results(
            folder,
            info=begin_info(
                folder.run_id,
                command=command,
                launches=launches,
                experiment=experiment,
                gate=gate,
                resumed=resumed,
            ),
            recorder=Recorder(run_id=folder.run_id, config_dirs=config_dirs),
            progress=self._progress,
            excuses=gate.excuses if gate is not None else lambda _: False,
            kept=kept,
        )
        self._runner = self._cell_runner(preflight, prompts)

    def _cell_runner(self, preflight: Preflight, prompts: PreparedPrompts) -> CellRunner:
        workloads = preflight.workloads
        return CellRunner(
            workloads=workloads,
            scorer=Scorer(
                writer=self._results.questions,
                run_id=self._folder.run_id,
                parent_environment=os.environ,
                prepared=prompts,
            ),
            referee=Referee(
                arms=preflight.arms,
                prompts=self._launches[0].cells[0].config.equivalence_prompts,
                source=lambda arm: workloads[arm.launch.launch_id].common_source(arm.cell),
            ),
            results=self._results,
            progress=self._progress,
        )

    def prepare(self) -> None:
        """What is known before anything starts. Raises OSError, or UserError for a baseline without code."""
        if self._resumed is not None:
            self._results.next_request_id = self._resumed.clear()
        if self._gate is not None:
            self._baseline_code = self._gate.code.prepare(self._folder.path)
            self._gate.prepare(self._folder)
        self._results.write_info()
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
                self._results.lose(error)
            return self._finish()

    def _next_look(self) -> list[Launch]:
        """Further launches of a comparison that is not decided; they join the plan."""
        if self._gate is None:
            return []
        try:
            more = self._gate.more(self._folder, self._results.records)
        except RecordError as error:
            self._results.lose(error)
            return []
        if more:
            self._launches += more
            self._results.expect(more)
        return more

    def _run_launch(self, launch: Launch) -> None:
        """All cells of a launch; after a death the rest gets a fresh engine."""
        reason = self._unsupported.get(launch.launch_id)
        if reason is not None:
            self._results.save_missing(Outcome(state=CellState.UNSUPPORTED, reason=reason), launch)
            return
        number = 1 + self._folder.attempts(launch.launch_id)
        while left := self._results.missing(launch):
            launch_id = launch.launch_id if number == 1 else f"{launch.launch_id}.{number}"
            attempt = self._attempt(launch, launch_id, left)
            try:
                attempt.run()
            except (ProcessesSurvived, ResultsUnwritable):
                raise
            except Exception as error:  # noqa: BLE001
                # the one place that catches everything: a fault of the harness costs a cell, never the run
                self._record_fault(attempt, error)
            number += 1

    def _attempt(self, launch: Launch, launch_id: str, cells: Sequence[Cell]) -> Attempt:
        """Raises ResultsUnwritable."""
        return Attempt(
            launch=launch,
            launch_id=launch_id,
            cells=cells,
            folder=self._folder.launch_folder(launch_id, cells[0].engine.path),
            cache_dir=self._cache_of(launch, launch_id),
            code=self._baseline_code if launch.arm == "baseline" else None,
            sys_path=self._config_dirs,
            runner=self._runner,
            results=self._results,
            progress=self._progress,
        )

    def _cache_of(self, launch: Launch, launch_id: str) -> Path:
        """Where compilers keep their results: the run's folder, or in a comparison one of the arm's own.

        Where cold start-up is gated every launch has its own, as each pair must show it.
        """
        if self._gate is None or launch.arm is None:
            return self._folder.cache
        place = self._folder.cache / launch.arm
        return place / launch_id if self._gate.cold_starts else place

    def _record_fault(self, attempt: Attempt, error: Exception) -> None:
        """The traceback goes to a log, the reason into the row of the cell that was being measured."""
        log = self._folder.write_fault(attempt.folder, error)
        reason = f"fault in the harness: {type(error).__name__}: {error}; traceback in {log.name}"
        err.print(f"{attempt.launch_id}: {one_line(reason)}", markup=False, soft_wrap=True)
        launch, cell = attempt.launch, attempt.current
        if cell in self._results.missing(launch):
            self._results.save(
                Outcome(state=CellState.FAILED, reason=reason),
                launch=launch,
                launch_id=attempt.launch_id,
                cell=cell,
                log=self._folder.relative(log),
            )
        else:  # its row is written; what failed came after it
            self._results.blame(ExitCode.INFRASTRUCTURE, f"{attempt.launch_id}, {cell.label}: {reason}")

    def _skip_rest(self, reason: str, code: ExitCode) -> None:
        """A row for every cell that has none."""
        self._results.blame(code, reason)
        outcome = Outcome(state=CellState.SKIPPED, reason=f"{reason} before this cell was measured")
        try:
            for launch in self._launches:
                self._results.save_missing(outcome, launch)
        except ResultsUnwritable as error:
            self._results.lose(error)

    def _finish(self) -> ExitCode:
        """Requests, run.json, report, table."""
        results = self._results
        self._folder.remove_cache()
        if results.user_error is not None and {cause.code for cause in results.causes} == {ExitCode.USAGE}:
            if self._resumed is None:
                self._folder.discard()
            raise UserError(results.user_error)
        from reports.html import write_report  # plotting: only when there is something to report

        try:
            results.finish_tables()
            results.write_end()
            closing = self._close_gate()
            report = write_report(self._folder.path)
            print_result(results.records, report)
            if closing is not None:
                closing.say()
        except OSError as error:
            results.lose(ResultsUnwritable(error))
            with contextlib.suppress(OSError):  # said in the line above
                results.write_end()
        return results.exit_code

    def _close_gate(self) -> Closing | None:
        """Verdict and artifacts of a comparison. Raises OSError."""
        if self._gate is None:
            return None
        results = self._results
        try:
            closing = self._gate.finish(self._folder, results.records, results.causes)
        except RecordError as error:
            results.lose(error)
            return None
        results.blame(closing.code, "the verdict of the comparison")
        results.write_end()
        return closing
