"""Cells for tests, made as the command line makes them."""

from harness.cell import resolve_cell
from harness.composition import Composer
from harness.config import validate_cell
from harness.overrides import expand_sweeps
from paths.api import Platform

CPU = Platform(device="cpu", compiler=True)


def make_cells(*words, config_dirs=(), platform=CPU, revision="r1"):
    composer = Composer(config_dirs)
    return [
        resolve_cell(
            validate_cell(composer.compose(choice), composer.groups["path"]),
            overrides=choice,
            platform=platform,
            revision=revision,
        )
        for choice in expand_sweeps(words, composer.groups)
    ]


def make_cell(*words, **settings):
    (cell,) = make_cells("+path=scripted", *words, **settings)
    return cell
