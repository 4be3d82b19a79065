"""Files that a reader finds whole: the old one or the new one, never half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def written_atomically(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, beside `path`; it takes its place at the end, or is gone if that fails."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # not mkstemp: others may read the file
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
