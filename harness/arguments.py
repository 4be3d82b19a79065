"""The flags of the command line; everything else on it is a Hydra override.

python -m harness +path=dsa_mrv2 concurrency=1,1024 --config-dir my_conf
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from paths.api import UserError

USAGE = """\
usage: python -m harness +path=NAME [key=value ...] [flags]

  python -m harness +path=dsa_mrv2 concurrency=1,1024            measure one path, two loads
  python -m harness +path=generic_mrv1,dsa_mrv2 concurrency=1,16 measure two paths on the same work
  python -m harness baseline=generic_mrv1 +path=dsa_mrv2 tier=pr is the second path as good as the first
  python -m harness experiment=attribution concurrency=1,16      which switch makes how much of the difference
  python -m harness cmd=list                                     paths and what they would run here
  python -m harness cmd=doctor                                   what this machine can run and measure
  python -m harness cmd=report run=results/ID                    report.html once more
  python -m harness +path=dsa_mrv2 dry_run=true                  plan and exact commands, nothing written

flags:
  --config-dir DIR   add DIR to the configuration (DIR/path/mine.yaml) and to the import path of engines
  --cfg job          print the composed configuration      --info [config|defaults|searchpath|...]
  --help  --version  -m (accepted: a comma makes a sweep with or without it)

keys, with their defaults (every key is explained in conf/config.yaml):
"""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Parsed flags. `config_dirs` are absolute and exist."""

    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    cfg: str | None = None
    info: str | None = None
    help: bool = False
    version: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m harness --help")


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Split flags from overrides. Raises UserError for unknown flags and missing folders."""
    parser = _Parser(prog="harness", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parsed = parser.parse_intermixed_args(list(argv))
    folders = tuple(Path(folder).expanduser().resolve() for folder in parsed.config_dir)
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--config-dir {folder}: no such folder; give one that holds path/NAME.yaml")
    return Arguments(
        overrides=tuple(parsed.overrides),
        config_dirs=folders,
        cfg=parsed.cfg,
        info=parsed.info,
        help=parsed.help,
        version=parsed.version,
    )
