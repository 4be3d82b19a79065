"""`--cfg` and `--info`, printed by Hydra itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hydra

from harness.arguments import Arguments
from harness.composition import CONFIG_NAME, packaged_conf
from harness.errors import ExitCode


def hydra_inspect(arguments: Arguments, cell: Sequence[str]) -> ExitCode:
    """Let Hydra print the composed configuration or its own state; it runs and writes nothing."""
    flags = ["--cfg", arguments.cfg] if arguments.cfg else ["--info", str(arguments.info)]
    for folder in arguments.config_dirs[:1]:
        flags += ["--config-dir", str(folder)]

    @hydra.main(version_base=None, config_path=str(packaged_conf()), config_name=CONFIG_NAME)
    def never_called(_: object) -> None:
        raise AssertionError("Hydra prints and returns with these flags")

    # Hydra reads its command line from sys.argv and offers no argument for it
    original, sys.argv = sys.argv, ["harness", *cell, *flags]
    try:
        never_called()
    finally:
        sys.argv = original
    return ExitCode.OK
