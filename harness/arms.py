"""What `baseline=` and its companions ask for, and the cells of both arms. Pure, but for composing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.cell import Cell
from harness.composition import Composer
from harness.overrides import nearest, parse_override
from harness.pairs import ArmName, CellPair
from harness.selection import make_cell
from paths.api import UserError

MOST_PAIRS = 64
# of a comparison, not of a cell
RUN_KEYS = ("baseline", "baseline_set", "baseline_rev", "baseline_python", "tier", "pairs", "resume")
NEVER_SET = ("path", "cmd", "debug", "dry_run", "out_dir", "experiment", *RUN_KEYS)
# both arms must be asked for the same work, else their numbers say nothing about each other
SAME_IN_BOTH = (
    "workload",
    "concurrency",
    "request_rate",
    "burstiness",
    "isl",
    "osl",
    "num_prompts",
    "seed",
    "measure_s",
    "warmup_s",
    "accuracy",
    "shots",
    "limit",
    "gsm8k",
    "mtp_mode",  # forced acceptance against real acceptance would be a verdict on the dice
    "mtp_forced_al",
    "equivalence",
    "equivalence_prompts",
)
_CONCERNS_NO_ARM = ("cmd", "dry_run", "out_dir")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = ("null", "true", "false", "inf", "nan")


class ArmsRequest(BaseModel):
    """The comparison that a command line asks for."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    cmd: Literal["run", "aa"] = Field(description="run, list, doctor, aa, compare, import, report, export")
    baseline: str | None = Field(None, min_length=1, description="the name of a path, or null")
    baseline_set: dict[str, Any] = Field(
        default_factory=dict, description="overrides such as '{kv_dtype: fp8}'"
    )
    baseline_rev: str | None = Field(None, min_length=1, description="a git ref, or null")
    baseline_python: str | None = Field(None, min_length=1, description="a Python interpreter, or null")
    pairs: int | None = Field(
        None, ge=1, le=MOST_PAIRS, description=f"an integer from 1 to {MOST_PAIRS}, or null for the tier's"
    )

    @property
    def is_aa(self) -> bool:
        return self.cmd == "aa"


def read_arms(composed: Mapping[str, Any]) -> ArmsRequest | None:
    """The comparison of a composed configuration; None if it has none. Raises UserError."""
    try:
        request = ArmsRequest.model_validate(dict(composed))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise UserError(
            f"{name}={first['input']}: not allowed; allowed: {ArmsRequest.model_fields[name].description}"
        ) from error
    code = [name for name in ("baseline_rev", "baseline_python") if getattr(request, name) is not None]
    if len(code) == 2:
        raise UserError("baseline_rev and baseline_python both say whose code the baseline runs; give one")
    if request.is_aa:
        if request.baseline is None:
            raise UserError("cmd=aa compares a path with itself; name it with baseline=NAME")
        if code:
            raise UserError(f"{code[0]}: cmd=aa runs both arms from the same code; leave it out")
        return request
    if request.baseline is None and not code:
        alone = [name for name in ("baseline_set", "pairs") if getattr(request, name)]
        if alone:
            raise UserError(f"{alone[0]}: there is no baseline; add baseline=NAME")
        return None
    return request


def without_run_words(words: Sequence[str]) -> tuple[str, ...]:
    """The overrides that make a cell."""
    return tuple(word for word in words if _key(word).split(".")[0] not in RUN_KEYS)


def pair_cells(
    request: ArmsRequest,
    choices: Sequence[tuple[str, ...]],
    *,
    composer: Composer,
    baseline_composer: Composer,
    revision: str,
    baseline_revision: str,
) -> list[CellPair]:
    """Both arms of every cell, validated. `choices`: overrides of the cells, run keys left out.

    `baseline_composer` composes the baseline from the configuration of its own revision. Raises UserError.
    """
    found: dict[str, CellPair] = {}
    pairs: list[CellPair] = []
    for choice in choices:
        words = baseline_words(request, choice)
        own = words if request.is_aa else _checked(choice, composer)
        candidate = make_cell(composer, own, revision=revision)
        try:
            baseline = make_cell(baseline_composer, words, revision=baseline_revision)
        except UserError as error:  # the candidate is right, so it is what the baseline has of its own
            raise UserError(f"baseline: {error}") from error
        pair = CellPair(baseline=_as_baseline(baseline, candidate, request), candidate=candidate)
        first = found.setdefault(pair.cell_id, pair)
        if first.candidate.arm_id != pair.candidate.arm_id:
            raise UserError(
                f"{first.candidate.label} and {pair.candidate.label} are the same cell for two candidates;"
                " a comparison has one: run once for each"
            )
        pairs.append(pair)
    return pairs


def baseline_words(request: ArmsRequest, choice: Sequence[str]) -> tuple[str, ...]:
    """The baseline's overrides: the candidate's, another path, `baseline_set`, and never debug.*.

    `path.options.*` of the command line belong to the path that is named there. Raises UserError.
    """
    given = [word for word in choice if _key(word) != "debug" and not _key(word).startswith("debug.")]
    if request.baseline is not None:
        given = [word for word in given if _key(word) != "path" and not _key(word).startswith("path.")]
        given.insert(0, f"+path={request.baseline}")
    own = _flat(request.baseline_set)
    for key in own:
        if key in NEVER_SET or key.split(".")[0] in set(NEVER_SET) - {"path"}:
            raise UserError(
                f"baseline_set: {key} cannot be set there; use baseline=NAME for the path, and leave debug.*"
                " and keys of the run out"
            )
        if key.split(".")[0] in SAME_IN_BOTH:
            raise UserError(
                f"baseline_set: {key} cannot be set there; both arms get the same work: set {key} for both,"
                " on the command line"
            )
    kept = [word for word in given if _key(word) not in own]
    return (*kept, *(f"{key}={override_value(value)}" for key, value in own.items()))


def difference(pairs: Sequence[CellPair]) -> list[str]:
    """What the composed configurations of the arms differ in, as `key: baseline → candidate`."""
    lines: list[str] = []
    for pair in pairs:
        one, other = (_flat_config(cell) for cell in (pair.baseline, pair.candidate))
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                lines.append(f"{key}: {_shown(one, key)} → {_shown(other, key)}")
    return list(dict.fromkeys(lines))


def dtypes_under_test(request: ArmsRequest) -> list[str]:
    """Dtypes in which the arms are meant to differ."""
    own = _flat(request.baseline_set)
    asked = {key for key in own if key in ("dtype", "kv_dtype", "index_dtype")}
    return sorted(asked | ({"index_dtype"} if "kv_dtype" in asked else set()))


def override_value(value: Any) -> str:
    """A value as the command line spells it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{override_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(override_value, value))}]"
    if isinstance(value, str) and not (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def arm_words(pairs: Sequence[CellPair], arm: ArmName) -> str:
    """Names of an arm's paths."""
    return ", ".join(dict.fromkeys(getattr(pair, arm).engine.path for pair in pairs))


def _as_baseline(baseline: Cell, candidate: Cell, request: ArmsRequest) -> Cell:
    """Under the cell's one id, and in an arm of its own even where it is the same as the candidate."""
    role = json.dumps([baseline.arm_id, "baseline", request.baseline_set], sort_keys=True, default=str)
    arm_id = hashlib.sha256(role.encode()).hexdigest()[:16]
    return dataclasses.replace(baseline, cell_id=candidate.cell_id, arm_id=arm_id)


def _checked(choice: tuple[str, ...], composer: Composer) -> tuple[str, ...]:
    """Raises UserError when no path is named for the candidate."""
    if not any(_key(word) == "path" for word in choice):
        known = composer.groups["path"]
        raise UserError(f"no candidate: add +path=NAME, NAME one of: {', '.join(known)}")
    return choice


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _flat_config(cell: Cell) -> dict[str, Any]:
    config = _flat(cell.config.model_dump(mode="json"))
    return {key: value for key, value in config.items() if key not in _CONCERNS_NO_ARM}


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], sort_keys=True, default=str) if key in values else "not set"


def _key(word: str) -> str:
    return str(parse_override(word).key_or_group)


def unknown_path(name: str, known: Sequence[str]) -> str:
    return f"baseline={name}: unknown path; known: {', '.join(known)}{nearest(name, known)}"
