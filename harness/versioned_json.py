"""JSON files that carry a `schema_version`, read into their typed form or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.records import RecordError

M = TypeVar("M", bound=BaseModel)
_REMEDY = "; restore the file, or measure again"


def read_json(path: Path, *, hint: str = "") -> Any:
    """The content of a file. Raises RecordError naming it, with `hint` where it cannot be opened."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}){hint}") from error
    except ValueError as error:  # of JSON, or of UTF-8
        raise RecordError(f"{path}: not valid JSON ({error}){_REMEDY}") from error


def version_of(content: Any) -> Any:
    """Its `schema_version`; None where it has none."""
    return content.get("schema_version") if isinstance(content, dict) else None


def read_versioned(path: Path, model: type[M], version: str, *, hint: str = "") -> M:
    """The typed content. Raises RecordError naming the file, also for another schema version."""
    content = read_json(path, hint=hint)
    if version_of(content) != version:
        raise RecordError(
            f"{path}: schema version {version_of(content)!r}, known: {version}; use the version of the "
            "harness that wrote it, or measure again"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}{_REMEDY}") from error
