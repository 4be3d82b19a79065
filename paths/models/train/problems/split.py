"""What training never sees: a fifth of the templates and of the names, chosen by a hash of their own text.

The choice depends on nothing else, so that adding a template or a name moves no other one.
"""

from __future__ import annotations

import hashlib

HELD_OUT_PERCENT = 20


def held_out(kind: str, name: str) -> bool:
    """Whether the `template` or `name` of that text is kept for the test set."""
    digest = hashlib.sha256(f"{kind}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT
