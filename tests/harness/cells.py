"""Cells for tests, made as the command line makes them."""

from harness import selection
from harness.composition import Composer
from harness.overrides import expand_sweeps
from paths.api import Platform

CPU = Platform(device="cpu", compiler=True, python_headers=True)


def make_cells(*words, config_dirs=(), platform=CPU, revision="r1"):
    composer = Composer(config_dirs)
    return [
        selection.make_cell(composer, choice, revision=revision, platform=platform)
        for choice in expand_sweeps(words, composer.groups)
    ]


def make_cell(*words, **settings):
    (cell,) = make_cells("+path=scripted", *words, **settings)
    return cell
