"""Trains the small model that is shipped: `python -m paths.models.train describe`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from paths.models.train.problems.describe import describe, json_lines
from paths.models.train.problems.stream import test_set


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m paths.models.train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("describe", help="print the distribution of the problems")
    problems = commands.add_parser("problems", help="write the held-out problems as JSON lines")
    problems.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "describe":
        print(describe(), end="")
    else:
        options.file.write_text(json_lines(test_set()), encoding="utf-8")


if __name__ == "__main__":
    main()
