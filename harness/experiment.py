"""conf/experiment: a ladder of paths that is climbed in rounds. Typed, validated, turned into cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.overrides import expand_sweeps, nearest, parse_override
from paths.api import UserError

GROUP = "experiment"
MOST_ROUNDS = 100
_NOT_BY_DEFAULT = ("path", GROUP, "cmd")  # keys that an experiment's own overrides cannot have


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Rung(_Section):
    """One path of a ladder and the switch that leads to it from the one before."""

    path: str = Field(min_length=1, description="the name of a path")
    switch: str | None = Field(
        None, min_length=1, description="a name for what differs from the path before; the first has none"
    )


class Experiment(_Section):
    """What `experiment=NAME` means."""

    name: str = Field(min_length=1, description="a name")
    rounds: int = Field(ge=1, le=MOST_ROUNDS, description=f"an integer from 1 to {MOST_ROUNDS}")
    ladder: list[Rung] = Field(min_length=2, description="a list of two or more {path: NAME, switch: TEXT}")
    overrides: list[str] = Field(default_factory=list, description="a list of key=value, of every cell")

    @property
    def paths(self) -> list[str]:
        """Names of the paths, from the first rung to the last."""
        return [rung.path for rung in self.ladder]


def without_experiment(words: Sequence[str]) -> tuple[str, ...]:
    """The overrides that a single cell has."""
    return tuple(word for word in words if _key(word).split(".")[0] != GROUP)


def without_path_options(words: Sequence[str]) -> tuple[str, ...]:
    """The overrides that can be composed before a path is chosen."""
    return tuple(word for word in words if not _key(word).startswith("path."))


def read_experiment(composed: Mapping[str, Any], known_paths: Sequence[str]) -> Experiment | None:
    """The experiment of a composed configuration; None if it has none. Raises UserError."""
    given = composed.get(GROUP)
    if given is None:
        return None
    try:
        experiment = Experiment.model_validate(given)
    except ValidationError as error:
        raise UserError(_explain(error)) from error
    _check_ladder(experiment, known_paths)
    return experiment


def arms(
    experiment: Experiment, words: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> list[tuple[str, ...]]:
    """Every cell of one round as its overrides: the ladder outermost, then the sweeps of the command line.

    `words` are the overrides of the command line. Raises UserError for one that the experiment sets itself.
    """
    own = without_experiment(words)
    given = {_key(word) for word in own}
    for word in own:
        if _key(word) == "path" or (
            _key(word).startswith("path.") and parse_override(word).is_sweep_override()
        ):
            raise UserError(
                f"{word}: experiment={experiment.name} sets the paths ({', '.join(experiment.paths)});"
                " leave it out, or write an experiment of your own as DIR/experiment/NAME.yaml"
            )
    defaults = [word for word in experiment.overrides if _key(word) not in given]
    choices = expand_sweeps([*defaults, *own], groups)
    return [(f"+path={path}", *choice) for path in experiment.paths for choice in choices]


def _key(word: str) -> str:
    return str(parse_override(word).key_or_group)


def _check_ladder(experiment: Experiment, known_paths: Sequence[str]) -> None:
    """What a single field cannot show. Raises UserError."""
    where = f"experiment {experiment.name}"
    for index, rung in enumerate(experiment.ladder):
        if rung.path not in known_paths:
            raise UserError(
                f"{where}: unknown path {rung.path}; known: {', '.join(known_paths)}"
                f"{nearest(rung.path, known_paths)} Add your own as DIR/path/{rung.path}.yaml with"
                " --config-dir DIR."
            )
        if rung.path == "auto":
            raise UserError(f"{where}: path auto is no rung, as its name says not what runs; name a path")
        if rung.path in experiment.paths[:index]:
            raise UserError(
                f"{where}: path {rung.path} is in the ladder twice; each rung is a path of its own"
            )
        if (rung.switch is None) != (index == 0):
            remedy = "leave its switch out" if index == 0 else "name what differs: {path: NAME, switch: TEXT}"
            has = "is the first and has a switch" if index == 0 else "has no switch"
            raise UserError(f"{where}: path {rung.path} {has}; {remedy}")
    for word in experiment.overrides:
        if _key(word).split(".")[0] in _NOT_BY_DEFAULT:
            raise UserError(
                f"{where}: overrides has {word}; allowed: any key but {', '.join(_NOT_BY_DEFAULT)}"
            )


def _explain(error: ValidationError) -> str:
    """The first mistake in words."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    model = Rung if place[:1] == ["ladder"] and len(place) > 1 else Experiment
    key = ".".join([GROUP, *place])
    field = model.model_fields.get(next((p for p in reversed(place) if not p.isdigit()), ""))
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}; known here: {', '.join(model.model_fields)}"
    if (model is Rung and len(place) == 2) or field is None:
        return f"{key}={first['input']}: not allowed; allowed: a mapping with {', '.join(model.model_fields)}"
    if first["type"] == "missing":
        return f"{key}: missing; it must be {field.description}"
    return f"{key}={first['input']}: not allowed; allowed: {field.description}"
