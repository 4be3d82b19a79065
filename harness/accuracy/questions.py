"""accuracy.parquet: one row per question, so that two arms can be paired question by question.

Written like the requests: parts while the run goes on, one file at its end. Pair rows on task, part, shots,
doc_id and prompt_hash; a different prompt_hash means that the two were not asked the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.requests_table import read_table, write_table_atomically

FILE_NAME = "accuracy.parquet"
PARTS_NAME = "accuracy"

_TEXT, _INT, _FLAG = pa.string(), pa.int32(), pa.bool_()
SCHEMA = pa.schema(
    {
        "run_id": _TEXT,
        "launch_id": _TEXT,
        "cell_id": _TEXT,
        "arm_id": _TEXT,
        "task": _TEXT,
        "part": _TEXT,  # full, or first: the first questions once more at concurrency 1
        "concurrency": _INT,
        "shots": _INT,
        "doc_id": _INT,  # place in the question file, from 0
        "doc_hash": _TEXT,  # of the question's text
        "prompt_hash": _TEXT,  # of the prompt's ids
        "prompt_tokens": _INT,
        "target": _TEXT,  # the worked answer
        "target_number": _TEXT,
        "answer": _TEXT,  # as lm-eval sees it: before the first stop string
        "strict_parsed": _TEXT,
        "flexible_parsed": _TEXT,
        "numeric_parsed": _TEXT,  # null: no number, `outcome` says why
        "strict_correct": _FLAG,  # null for a request that failed
        "flexible_correct": _FLAG,
        "numeric_correct": _FLAG,
        "outcome": _TEXT,  # correct, wrong, truncated, unparsable, empty or error
        "truncated": _FLAG,  # the length limit ended it, whatever it says
        "unparsable": _FLAG,  # it ended by itself and holds no number
        "several_markers": _FLAG,
        "run_on": _FLAG,  # it went on with a question of its own
        "generated_tokens": _INT,
        "verifications": _INT,  # of drafts; null where the engine tells of none
        "drafted": _INT,
        "accepted": _INT,
        "first_accepted": _INT,  # verifications that accepted their first draft
        "finish_reason": _TEXT,
        "error": _TEXT,
    }
)


class QuestionsWriter:
    """Collects the rows of one run's scorings in its folder."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._parts = len(_parts(run_dir))

    def add(self, rows: Sequence[Mapping[str, Any]], **ids: Any) -> None:
        """Write the rows of a stage or of a piece of it; `ids` are columns that all of them share."""
        if not rows:
            return
        table = pa.Table.from_pylist([ids | dict(row) for row in rows], schema=SCHEMA)
        folder = self._run_dir / PARTS_NAME
        folder.mkdir(exist_ok=True)
        write_table_atomically(table, folder / f"{self._parts:04d}.parquet")
        self._parts += 1

    def finish(self) -> Path | None:
        """Join the parts into one file; None when nothing was scored."""
        if not self._parts:
            return None
        target = self._run_dir / FILE_NAME
        write_table_atomically(read_questions(self._run_dir), target)
        shutil.rmtree(self._run_dir / PARTS_NAME, ignore_errors=True)
        return target


def read_questions(run_dir: Path) -> pa.Table:
    """All rows of a run: its file, or the parts of an interrupted one; an empty table without either.

    Raises RecordError for a damaged one.
    """
    target = run_dir / FILE_NAME
    if target.is_file():
        return read_table(target, SCHEMA)
    return pa.concat_tables([SCHEMA.empty_table(), *(read_table(path, SCHEMA) for path in _parts(run_dir))])


def _parts(run_dir: Path) -> list[Path]:
    return sorted((run_dir / PARTS_NAME).glob("*.parquet"))
