"""`--cfg hydra`, `--cfg all` and `--info`, printed by Hydra itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hydra

from harness.arguments import Arguments
from harness.composition import CONFIG_NAME, packaged_conf, search_path_override
from harness.errors import ExitCode


def hydra_inspect(arguments: Arguments, cell: Sequence[str]) -> ExitCode:
    """Let Hydra print its own configuration or state; it runs and writes nothing."""
    flags = ["--cfg", arguments.cfg] if arguments.cfg else ["--info", str(arguments.info)]

    @hydra.main(version_base=None, config_path=str(packaged_conf()), config_name=CONFIG_NAME)
    def never_called(_: object) -> None:
        raise AssertionError("Hydra prints and returns with these flags")

    # Hydra reads its command line from sys.argv and offers no argument for it
    original, sys.argv = sys.argv, ["harness", *cell, search_path_override(arguments.config_dirs), *flags]
    try:
        never_called()
    finally:
        sys.argv = original
    return ExitCode.OK
