"""A comparison as it was judged after it was measured: its findings, and what the run ended with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pydantic import ValidationError

from harness.records import RecordError
from reports.gate.run_gate import VERDICT, Judgement, judge_folder
from reports.gate.verdict import VerdictFile


def stored_judgement(folder: Path) -> Judgement:
    """Judges again, and takes verdict and exit code of verdict.json where its gated verdicts are the same.

    Only the file knows how the run ended, which can be worse than any finding. Raises RecordError.
    """
    judgement = judge_folder(folder)
    path = folder / VERDICT
    if not path.exists():
        return judgement
    try:
        stored = VerdictFile.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if stored.gates != judgement.verdict.gates:
        return judgement
    return dataclasses.replace(judgement, verdict=stored)
