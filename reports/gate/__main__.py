"""`python -m reports.gate schema` writes the JSON Schema that is shipped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reports.gate.verdict import json_schema

SCHEMA = Path(__file__).with_name("verdict.schema.json")


def main(words: list[str]) -> int:
    if words != ["schema"]:
        print("usage: python -m reports.gate schema", file=sys.stderr)
        return 2
    SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
