"""Question files: one `{"question": "…", "answer": "… #### 18"}` a line, as GSM8K's own files are."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.accuracy.numeric import MARKER, read_target
from paths.api import UserError

_DATA = Path(__file__).parent / "data"
ARITH_TEST = _DATA / "arith_gsm_test.jsonl"
ARITH_TRAIN = _DATA / "arith_gsm_train.jsonl"  # worked examples for the prompts, from the training stream


@lru_cache(maxsize=8)
def read_problems(file: Path, key: str) -> tuple[dict[str, str], ...]:
    """All problems of a file that the command line's `key` names.

    Raises UserError, with the line number, for a file that cannot be read and for a line that is no problem.
    """
    said = f"{key}={file}"
    if not file.is_file():
        raise UserError(f"{said}: no such file; give a JSONL file of questions and answers")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{said}: cannot be read ({error}); give a UTF-8 JSONL file") from error
    problems = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            problems.append(_problem(line))
        except ValueError as error:
            raise UserError(f"{said}, line {number}: {error}") from error
    if not problems:
        raise UserError(f"{said}: no problems; the file needs at least one line")
    return tuple(problems)


def _problem(line: str) -> dict[str, str]:
    """One line; ValueError says what is wrong with it."""
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from error
    question, answer = (data.get("question"), data.get("answer")) if isinstance(data, dict) else (None, None)
    if not (isinstance(question, str) and isinstance(answer, str) and question.strip()):
        raise ValueError('must be an object with the texts "question" and "answer"')
    try:
        (question + answer).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text that is not valid Unicode ({error.reason}); correct it") from error
    if read_target(answer) is None:
        raise ValueError(f'"answer" must end with `{MARKER} NUMBER`, but ends with {answer[-40:]!r}')
    return {"question": question, "answer": answer}
