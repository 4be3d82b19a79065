"""The summary on the page of a CI job, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

from harness.console import err

VARIABLE = "GITHUB_STEP_SUMMARY"  # a file that GitHub Actions names


def tell_step_summary(summary: str) -> None:
    """Append `summary` to the file of the job; without one, nothing. A page is not worth a verdict."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    try:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(summary + "\n")
    except OSError as error:
        err.print(f"harness: {VARIABLE}={name}: {error.strerror}", markup=False, soft_wrap=True)
