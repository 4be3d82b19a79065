"""One started engine of a launch: from its start to the last cell that it serves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.cell import Cell
from harness.cell_run import CellRunner, Serving
from harness.client.endpoint import EngineDied
from harness.effective import without_counts
from harness.engine_code import EngineCode
from harness.errors import ExitCode
from harness.expectation import mismatches
from harness.launch import EngineProcess, Ready
from harness.plan import Launch
from harness.progress import Progress
from harness.recording import STATE_OF_DEATH, Outcome
from harness.records import CellState
from harness.results import Results
from harness.run_folder import now_text
from harness.signals import deferred
from paths.api import UserError


@dataclass(kw_only=True)
class Attempt:
    """The first of a launch has the launch's id, one after a death has a suffix.

    `cells`: those of the launch that have no record yet. `code`: the engine's, where it is not our own.
    """

    launch: Launch
    launch_id: str
    cells: Sequence[Cell]
    folder: Path
    cache_dir: Path
    code: EngineCode | None
    sys_path: Sequence[Path]
    runner: CellRunner
    results: Results
    progress: Progress
    current: Cell = field(init=False)  # what is being measured, or comes next

    def __post_init__(self) -> None:
        self.current = self.cells[0]

    def run(self) -> None:
        """Start the engine and measure until all cells have a record or the engine has died."""
        first = self.cells[0]
        engine = EngineProcess(
            first.engine,
            folder=self.folder,
            cache_dir=self.cache_dir,
            code=self.code,
            parent_environment=os.environ,
            sys_path=[str(folder) for folder in self.sys_path],
            timeout_s=first.timeout_s,
        )
        with engine:
            ready = self._start(engine)
            if ready is not None:
                self._measure_cells(engine, ready)

    def _start(self, engine: EngineProcess) -> Ready | None:
        """The engine as it answers; None, with a record for every cell, where it cannot serve them."""
        first = self.cells[0]
        try:
            ready = engine.start(self.progress.engine_says(self.launch_id, first.engine.path))
        except UserError as error:
            self.results.user_error = self.results.user_error or str(error)
            outcome = Outcome(state=CellState.FAILED, reason=str(error))
            self._save_all(engine, outcome, code=ExitCode.USAGE)
            return None
        except EngineDied as error:
            outcome = Outcome(state=STATE_OF_DEATH[error.kind], reason=f"at start-up: {error.reason}")
            self._save_all(engine, outcome)
            return None
        wrong = mismatches(first.config.path, first.engine, ready.effective, measured=False)
        wrong += engine.code_mismatch(ready.effective)
        if wrong:
            effective = without_counts(ready.effective)
            outcome = Outcome(state=CellState.PATH_MISMATCH, reason="; ".join(wrong), effective=effective)
            self._save_all(engine, outcome, ready=ready)
            return None
        return ready

    def _measure_cells(self, engine: EngineProcess, ready: Ready) -> None:
        serving = Serving(launch=self.launch, launch_id=self.launch_id, ready=ready, folder=self.folder)
        for cell in self.cells:
            self.current, started_at = cell, now_text()
            with deferred():  # from here on Ctrl-C ends the load, and nothing that comes after it
                end = self.runner.run(serving, cell)
                self._save(engine, end.outcome, cell, started_at=started_at, ready=ready)
                if end.measurement is not None and not end.requests_kept:
                    self.results.keep_requests(end.measurement, launch_id=self.launch_id, cell=cell)
            if end.interrupted:
                raise KeyboardInterrupt
            if not end.alive:
                engine.close(grace_s=0.0)
                return

    def _save_all(
        self,
        engine: EngineProcess,
        outcome: Outcome,
        *,
        ready: Ready | None = None,
        code: ExitCode | None = None,
    ) -> None:
        """The same outcome for all cells of an engine that never served."""
        for cell in self.cells:
            self._save(engine, outcome, cell, ready=ready, code=code)

    def _save(
        self,
        engine: EngineProcess,
        outcome: Outcome,
        cell: Cell,
        *,
        started_at: str | None = None,
        ready: Ready | None = None,
        code: ExitCode | None = None,
    ) -> None:
        self.results.save(
            outcome,
            launch=self.launch,
            launch_id=self.launch_id,
            cell=cell,
            started_at=started_at,
            ready=ready,
            log=self.results.folder.relative(engine.log),
            code=code,
        )
