"""What an engine may say, checked as it arrives: an engine is foreign code and its mistakes cost one cell."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from paths.api import Counters, Effective, EventDetail, FinishReason, StartupReport, StepEvents

_SHAPES: dict[str, tuple[type, ...]] = {
    "progress": (str,),
    "ready": (StartupReport, Effective, str, int),
    "events": (StepEvents,),
    "reply": (int, object),
    "user_error": (str,),
    "fatal": (str, str),
}
_REPORTS = (StartupReport, Effective, Counters)
_DEATHS = ("oom", "crash")
_LAST_REASON = max(FinishReason)


class MalformedMessage(Exception):
    """The engine said something that the protocol does not know."""


def checked(message: object) -> tuple[Any, ...]:
    """`message` itself. Raises MalformedMessage naming what is wrong with it."""
    if not isinstance(message, tuple) or not message or message[0] not in _SHAPES:
        raise MalformedMessage(f"{_shown(message)} is not a message; known: {', '.join(_SHAPES)}")
    kind, *parts = message
    shape = _SHAPES[kind]
    if len(parts) != len(shape) or not all(map(isinstance, parts, shape)):
        words = ", ".join(part.__name__ for part in shape)
        raise MalformedMessage(f"{kind!r} carries {_shown(tuple(parts))}, not ({words})")
    if kind == "fatal" and parts[0] not in _DEATHS:
        raise MalformedMessage(f"'fatal' of kind {_shown(parts[0])}; known: {', '.join(_DEATHS)}")
    for part in parts:
        if isinstance(part, _REPORTS):
            _check_report(part)
        elif isinstance(part, StepEvents):
            _check_events(part)
    return message


def _check_report(report: StartupReport | Effective | Counters) -> None:
    """Every field has the type that the contract gives it; numbers are finite and at least 0."""
    hints = get_type_hints(type(report))
    for field in dataclasses.fields(report):
        name, hint = field.name, hints[field.name]
        value = getattr(report, name, None)
        if not _fits(value, hint):
            words = getattr(hint, "__name__", str(hint)) if get_origin(hint) is None else str(hint)
            raise MalformedMessage(f"{type(report).__name__}.{name} is {_shown(value)}, not a valid {words}")


def _fits(value: object, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
        )
    if origin in (tuple, list):
        return isinstance(value, origin) and all(_fits(each, inner[0]) for each in value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]
    return isinstance(value, hint)


def _check_events(events: StepEvents) -> None:
    columns = {name: getattr(events, name) for name in ("request_ids", "token_counts", "token_ids", "finish")}
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
            raise MalformedMessage(f"events.{name} is {_shown(column)}, not one column of whole numbers")
    counts, finish = events.token_counts, events.finish
    if not len(events.request_ids) == len(counts) == len(finish):
        sizes = f"{len(events.request_ids)} request_ids, {len(counts)} token_counts, {len(finish)} finish"
        raise MalformedMessage(f"events with {sizes}: the columns must be equally long")
    if len(counts) and int(counts.min()) < 0:
        raise MalformedMessage(f"events.token_counts holds {int(counts.min())}; a count is at least 0")
    if int(counts.sum()) != len(events.token_ids):
        raise MalformedMessage(f"{int(counts.sum())} tokens are announced, {len(events.token_ids)} were sent")
    if len(finish) and not 0 <= int(finish.min()) <= int(finish.max()) <= _LAST_REASON:
        wrong = next(int(code) for code in finish if not 0 <= code <= _LAST_REASON)
        raise MalformedMessage(f"events.finish holds {wrong}; a reason is 0 to {int(_LAST_REASON)}")
    if not isinstance(events.time_ns, int) or not 0 <= events.time_ns < 2**63:
        raise MalformedMessage(f"events.time_ns is {_shown(events.time_ns)}, not a time in nanoseconds")
    _check_drafts(events)
    if events.details != {}:
        _check_details(events.details)


def _check_drafts(events: StepEvents) -> None:
    """More accepted than drafted is for the check `acceptance` to name: a wrong sum, not a broken message."""
    columns = {"drafted": events.drafted, "accepted": events.accepted}
    if all(column is None for column in columns.values()):
        return
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
            raise MalformedMessage(f"events.{name} is {_shown(column)}, not one column of whole numbers")
        if len(column) != len(events.request_ids):
            raise MalformedMessage(
                f"events.{name} has {len(column)} rows for {len(events.request_ids)} requests"
            )
        if len(column) and int(column.min()) < 0:
            raise MalformedMessage(
                f"events.{name} holds {int(column.min())}; a number of drafts is at least 0"
            )


def _check_details(details: object) -> None:
    if not isinstance(details, Mapping):
        raise MalformedMessage(f"events.details is {_shown(details)}, not a dictionary of EventDetail by row")
    for row, detail in details.items():
        if not isinstance(row, int) or not isinstance(detail, EventDetail):
            raise MalformedMessage(
                f"events.details holds {_shown(row)}: {_shown(detail)}, not an EventDetail"
            )
        if not isinstance(detail.error, str | None):
            raise MalformedMessage(f"the error of an event is {_shown(detail.error)}, not a text")


def _shown(value: object) -> str:
    return f"{type(value).__name__} {repr(value)[:60]}"
