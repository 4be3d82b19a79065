"""results/<run id>/: created exclusively, the only place that a run writes to."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import traceback
from datetime import datetime
from pathlib import Path

import yaml

from harness.cell import Cell
from harness.records import Record, RunInfo, append_record, write_text_atomically
from paths.api import UserError


def now_text() -> str:
    """Wall clock as ISO 8601 with zone; a label, never used in arithmetic."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class ResultsUnwritable(Exception):
    """The results folder takes no more rows: the run cannot go on, what is in it stays."""

    def __init__(self, error: OSError) -> None:
        where = error.filename or "the run folder"
        super().__init__(
            f"results cannot be written ({error.strerror or error}: {where}); what was finished is kept: make"
            " room, then cmd=report run=DIR shows it, and resume=RUN_ID goes on"
        )


class RunFolder:
    """Where things of one run go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = os.open(path, os.O_RDONLY)  # held as long as this process lives
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.run_id = path.name
        self.cache = path / "cache"  # of compilers; removed when the run ends

    @classmethod
    def create(cls, out_dir: str) -> RunFolder:
        """A new folder under `out_dir`. Raises UserError if it cannot be written."""
        parent = Path(out_dir).expanduser().resolve()
        run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            (parent / run_id).mkdir()
        except OSError as error:
            raise UserError(
                f"out_dir={out_dir}: cannot be written ({error.strerror}: {error.filename});"
                " choose a folder that can"
            ) from error
        folder = cls(parent / run_id)
        folder.cache.mkdir()
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run that is continued. Raises UserError while it is still going on, and OSError."""
        try:
            folder = cls(path)
        except BlockingIOError as error:
            raise UserError(f"resume={path.name}: that run is still going on; wait, or end it") from error
        return folder

    def release(self) -> None:
        """Let another process have it: nothing was done here."""
        os.close(self._lock)

    def attempts(self, launch_id: str) -> int:
        """How many engines of a launch have a folder already."""
        places = (self.path / "cells").glob(f"{launch_id}[-.]*")
        return sum(1 for place in places if place.is_dir())

    def launch_folder(self, launch_id: str, path_name: str) -> Path:
        """Where the log of one launch goes."""
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in path_name)[:60]
        folder = self.path / "cells" / f"{launch_id}-{safe}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise ResultsUnwritable(error) from error
        return folder

    def write_cell_config(self, cell: Cell) -> None:
        """The composed configuration of one cell."""
        folder = self.path / "cells" / cell.folder
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(cell.config.model_dump(mode="json"), sort_keys=False)
        write_text_atomically(folder / "config.yaml", text)

    def write_info(self, info: RunInfo) -> None:
        write_text_atomically(self.path / "run.json", info.model_dump_json(indent=2) + "\n")

    def append(self, record: Record) -> None:
        """Raises ResultsUnwritable."""
        try:
            append_record(self.path / "records.jsonl", record)
        except OSError as error:
            raise ResultsUnwritable(error) from error

    def write_fault(self, place: Path, error: Exception) -> Path:
        """Append a traceback of the harness to the log of its own in a launch's folder; returns that log."""
        log = place / "harness.log"
        try:
            with log.open("a", encoding="utf-8") as file:
                file.write("".join(traceback.format_exception(error)))
        except OSError as failure:
            raise ResultsUnwritable(failure) from error
        return log

    def relative(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()

    def remove_cache(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)

    def discard(self) -> None:
        """Remove the folder of a run that measured nothing because its configuration was wrong."""
        shutil.rmtree(self.path)
