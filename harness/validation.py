"""A composed cell into its typed configuration. A mistake is one line that says what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.config import CellConfig, Expectation
from harness.errors import one_line
from harness.overrides import nearest
from paths.api import UserError


def validate_cell(data: Mapping[str, Any], known_paths: list[str]) -> CellConfig:
    """Typed configuration of a composed cell. Raises UserError naming value, allowed values and remedy."""
    if "path" not in data:
        raise UserError(f"no path given; choose one with +path=NAME, NAME one of: {', '.join(known_paths)}")
    given = dict(data)
    if given.get("tier") is not None:
        raise UserError(
            f"tier={given['tier'].get('name')}: a gate needs two arms; measure both, then"
            " cmd=compare baseline_run=DIR candidate_run=DIR tier=NAME"
        )
    if given.get("concurrency") is None and given.get("request_rate") is None:
        given["concurrency"] = 1
    try:
        config = CellConfig.model_validate(given)
    except ValidationError as error:
        raise UserError(_explain(error)) from error
    if isinstance(config.threads, int) and config.threads < 1:
        raise UserError(f"threads={config.threads}: not allowed; allowed: {_description(('threads',))}")
    if config.workload.kind == "dataset" and config.workload.file is None:
        raise UserError("workload.file=null: a dataset needs a JSONL file; set workload.file=FILE")
    if config.workload.kind != "dataset" and config.workload.file is not None:
        raise UserError(
            f"workload.file={config.workload.file}: {config.workload.kind} prompts need no file;"
            " set workload=dataset to send it, or leave workload.file out"
        )
    if config.workload.kind == "arith" and config.isl is not None:
        raise UserError(f"isl={config.isl}: word problems have lengths of their own; leave isl out")
    _check_speculation(config)
    return config


def _check_speculation(config: CellConfig) -> None:
    """Raises UserError for a mode that does not fit to `mtp`."""
    al = config.mtp_forced_al
    if config.mtp_mode == "real":
        if al is not None:
            raise UserError(
                f"mtp_forced_al={al:g}: mtp_mode=real forces nothing; set mtp_mode=forced or leave it out"
            )
        return
    if config.mtp == 0:
        raise UserError("mtp_mode=forced: mtp=0 drafts nothing; set mtp to 1 or more, or mtp_mode=real")
    if al is None or al > config.mtp + 1:
        raise UserError(
            f"mtp_forced_al={_shown(al)}: mtp_mode=forced with mtp={config.mtp} needs a number from 1 to"
            f" {config.mtp + 1}, the mean of accepted drafts + 1"
        )


def _explain(error: ValidationError) -> str:
    """The first mistake in words, and how many more there are."""
    details = error.errors(include_url=False)
    first = details[0]
    names = tuple(str(part) for part in first["loc"])
    key = _dotted(names)
    if first["type"] == "extra_forbidden":
        known = _fields(names[:-1])
        text = f"unknown key {key}{nearest(names[-1], known)} Known here: {', '.join(known)}."
    elif first["type"] == "missing":
        text = f"{key}: missing; it must be {_description(names)}"
    else:
        text = f"{key}={_shown(first['input'])}: not allowed; allowed: {_description(names)}"
    others = len({detail["loc"][0] for detail in details} - {first["loc"][0]})
    return one_line(text + (f" (and {others} more mistakes)" if others else ""))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _section(names: tuple[str, ...]) -> tuple[type[BaseModel], int]:
    """The deepest section along `names` and how many names led there."""
    model: type[BaseModel] = CellConfig
    for depth, name in enumerate(names):
        field = model.model_fields.get(name)
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return model, depth
        model = inner
    return model, len(names)


def _fields(names: tuple[str, ...]) -> list[str]:
    if names[:2] == ("path", "expect"):
        return list(Expectation.model_fields)
    return list(_section(names)[0].model_fields)


def _description(names: tuple[str, ...]) -> str:
    if names[:2] == ("path", "expect") and len(names) > 3:
        field = Expectation.model_fields.get(names[3])
        return str(field.description) if field is not None else ", ".join(Expectation.model_fields)
    model, depth = _section(names)
    if depth == len(names):
        return f"a group with the keys {', '.join(model.model_fields)}"
    field = model.model_fields.get(names[depth])
    return str(field.description) if field is not None else ", ".join(model.model_fields)


def _dotted(names: tuple[str, ...]) -> str:
    """Drop what pydantic appends for the members of a union ("threads", "int")."""
    _, depth = _section(names)
    keep = len(names) if names[:2] == ("path", "expect") else depth + 1
    return ".".join(names[:keep])
