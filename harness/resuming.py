"""`resume=RUN_ID`: an interrupted run goes on in its folder; launches that ended are kept."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.accuracy import questions
from harness.arguments import Arguments, parse_arguments
from harness.cell import Cell
from harness.comparison_info import ComparisonInfo
from harness.environment import code_revision
from harness.errors import ExitCode, one_line
from harness.overrides import parse_override
from harness.plan import Launch
from harness.records import (
    SCHEMA_VERSION,
    CellState,
    Record,
    RecordError,
    RunInfo,
    read_records,
    write_text_atomically,
)
from harness.requests_table import FILE_NAME, PARTS_NAME, read_requests, write_table_atomically
from harness.run_folder import RunFolder
from harness.versioned_json import read_versioned
from paths.api import UserError

KEY = "resume"
_DEFAULT_OUT_DIR = "results"
_RECORDS = "records.jsonl"
_FREE = ("out_dir", "dry_run", "cmd")  # keys that may change


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A run that goes on: what is kept of it, and which launches it had planned."""

    folder: RunFolder
    info: RunInfo
    records: list[Record]

    def clear(self) -> int:
        """Take what is not kept out of the files, before anything is added; returns the next request id.

        Raises OSError.
        """
        self.folder.cache.mkdir(exist_ok=True)
        lines = "".join(record.model_dump_json() + "\n" for record in self.records)
        write_text_atomically(self.folder.path / _RECORDS, lines)
        kept = {record.launch_id for record in self.records}
        _keep_rows(self.folder.path, kept, name=FILE_NAME, parts=PARTS_NAME, read=read_requests)
        _keep_rows(
            self.folder.path,
            kept,
            name=questions.FILE_NAME,
            parts=questions.PARTS_NAME,
            read=questions.read_questions,
        )
        ids = read_requests(self.folder.path).column("request_id").to_pylist()
        return max(ids, default=-1) + 1


def continued(arguments: Arguments) -> tuple[Arguments, str | None]:
    """The arguments without `resume=`, and the run that it names.

    Alone, or with out_dir alone, it stands for the words that the run was started with. Raises UserError.
    """
    keys = {word: str(parse_override(word).key_or_group) for word in arguments.overrides}
    asked = [word for word, key in keys.items() if key == KEY]
    if len(asked) != 1 or parse_override(asked[0]).value() is None:
        return dataclasses.replace(
            arguments, overrides=_without(keys, asked) if asked else arguments.overrides
        ), None
    run_id = str(parse_override(asked[0]).value())
    words = _without(keys, asked)
    if set(keys.values()) <= {KEY, "out_dir"}:
        out_dir = next((str(parse_override(word).value()) for word in words), _DEFAULT_OUT_DIR)
        info = _read_info(_folder(out_dir, run_id), run_id)
        before = parse_arguments(shlex.split(info.command)[3:])
        own = [word for word in before.overrides if parse_override(word).key_or_group not in keys.values()]
        return dataclasses.replace(before, overrides=(*own, *words)), run_id
    return dataclasses.replace(arguments, overrides=words), run_id


def _without(keys: Mapping[str, str], left_out: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in keys if word not in left_out)


def resume_run(
    run_id: str,
    *,
    out_dir: str,
    planned: Mapping[str, Launch],
    comparison: ComparisonInfo | None = None,
    together: Collection[str] = (),
) -> Resumed:
    """The run, if it may go on with this configuration. Raises UserError in one line.

    `planned`: every launch that this configuration can have, by id. `together`: launches that are kept only
    if all of them have ended, as their answers are compared with each other.
    """
    path = _folder(out_dir, run_id)
    info = _read_info(path, run_id)
    if info.finished_at is not None and info.exit_code != ExitCode.INTERRUPTED:
        raise UserError(
            f"resume={run_id}: that run has ended with exit code {info.exit_code};"
            " start a new one, or judge it again with cmd=compare"
        )
    folder = RunFolder.reopen(path)
    try:
        changed = _changes(info, path, planned, comparison)
        if changed:
            raise UserError(
                f"resume={run_id}: the configuration has changed: {changed}; give the words that the run was"
                " started with, or start a new run"
            )
        records = _read_all(path, run_id)
    except UserError:
        folder.release()
        raise
    return Resumed(folder=folder, info=info, records=_of_ended_launches(info, records, together))


def _read_all(path: Path, run_id: str) -> list[Record]:
    """The records, after every file that is gone on with has been read once. Raises UserError for damage."""
    try:
        records, _ = read_records(path / _RECORDS) if (path / _RECORDS).exists() else ([], [])
        read_requests(path)
        questions.read_questions(path)
    except RecordError as error:
        raise _damaged(run_id, error) from error
    return records


def _damaged(run_id: str, error: Exception) -> UserError:
    return UserError(f"resume={run_id}: {one_line(error)[:300]}; start a new run")


def _folder(out_dir: str, run_id: str) -> Path:
    parent = Path(out_dir).expanduser().resolve()
    path = parent / run_id
    if not run_id or Path(run_id).name != run_id or not (path / "run.json").is_file():
        known = sorted((one.parent.name for one in parent.glob("*/run.json")), reverse=True)[:3]
        raise UserError(
            f"resume={run_id}: no such run in {parent}; "
            + (f"the latest are {', '.join(known)}" if known else "there is none; set out_dir=DIR")
        )
    return path


def _read_info(path: Path, run_id: str) -> RunInfo:
    try:
        info = read_versioned(path / "run.json", RunInfo, SCHEMA_VERSION)
    except RecordError as error:
        raise _damaged(run_id, error) from error
    if info.run_id != run_id:
        raise UserError(
            f"resume={run_id}: that folder holds the run {info.run_id}; a copy cannot go on, the original can"
        )
    return info


def _changes(
    info: RunInfo, path: Path, planned: Mapping[str, Launch], comparison: ComparisonInfo | None
) -> str | None:
    """What differs, in words; None when the run may go on."""
    revision = info.environment.get("revision")
    if revision != code_revision():
        return f"the code was {revision}, is {code_revision()}"
    words = _cell_changes(info, path, planned)
    if words:
        return words
    before = info.comparison.model_dump(mode="json") if info.comparison else {}
    now = comparison.model_dump(mode="json") if comparison else {}
    keys = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if not keys:
        return None
    key = keys[0]
    return f"{key} was {_short(before.get(key))}, is {_short(now.get(key))}"


def _cell_changes(info: RunInfo, path: Path, planned: Mapping[str, Launch]) -> str | None:
    for entry in info.plan:
        launch = planned.get(entry["launch_id"])
        if launch is None:
            return f"launch {entry['launch_id']} is no longer planned"
        cells = {cell.cell_id: cell for cell in launch.cells}
        for place, said in enumerate(entry["cells"]):
            cell = cells.get(said["cell_id"])
            same = cell is not None and cell.folder == said["folder"]
            if cell is None and place < len(launch.cells):
                cell = launch.cells[place]
            words = _config_changes(path, said["folder"], cell)
            if words or not same or entry["engine_id"] != launch.engine_id:
                return words or f"{said['label']} is no longer planned in {entry['launch_id']}"
    return None


def _config_changes(path: Path, folder: str, cell: Cell | None) -> str | None:
    file = path / "cells" / folder / "config.yaml"
    if cell is None or not file.is_file():
        return None
    try:
        before = _flat(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"resume: {file} cannot be read ({one_line(error)}); start a new run") from error
    now = _flat(cell.config.model_dump(mode="json"))
    keys = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    changed = [key for key in keys if key not in _FREE]
    return "; ".join(f"{key} was {_short(before.get(key))}, is {_short(now.get(key))}" for key in changed[:3])


def _of_ended_launches(info: RunInfo, records: Sequence[Record], together: Collection[str]) -> list[Record]:
    """Records of the launches whose planned cells all have one; a cell that was skipped has none."""
    planned = {entry["order"]: {cell["cell_id"] for cell in entry["cells"]} for entry in info.plan}
    measured: dict[int, set[str]] = {}
    for record in records:
        if record.state is not CellState.SKIPPED:
            measured.setdefault(record.order, set()).add(record.cell_id)
    ended = {order for order, cells in planned.items() if cells <= measured.get(order, set())}
    joined = {entry["order"] for entry in info.plan if entry["launch_id"] in together}
    ended -= set() if joined <= ended else joined
    return [record for record in records if record.order in ended]


def _keep_rows(run_dir: Path, launches: set[str], *, name: str, parts: str, read: Any) -> None:
    """Turn a finished table, or the parts of one, into one part with the rows of `launches`."""
    target = run_dir / name
    if not target.is_file() and not (run_dir / parts).is_dir():
        return
    table = read(run_dir)
    mask = [launch in launches for launch in table.column("launch_id").to_pylist()]
    target.unlink(missing_ok=True)
    for old in (run_dir / parts).glob("*.parquet"):
        old.unlink()
    if any(mask):
        (run_dir / parts).mkdir(exist_ok=True)
        write_table_atomically(table.filter(mask), run_dir / parts / "000.parquet")


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, Mapping) or not values:
        return {prefix.rstrip("."): values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"
