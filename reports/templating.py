"""The page templates, compiled once: what is put into one is escaped, a missing name is an error."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports.tables import short

TEMPLATES = Path(__file__).parent / "templates"
SCRIPT = "tables.js"  # sorts and filters tables; pages are complete without it


@lru_cache(maxsize=1)
def templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    return environment


def script_hash() -> str:
    """What a page's policy allows to run: `SCRIPT` and no other."""
    digest = hashlib.sha256(templates().get_template(SCRIPT).render().encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
