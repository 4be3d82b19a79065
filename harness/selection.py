"""From the words of one cell to the cell, `+path=auto` replaced by the path that is chosen here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from harness.cell import Cell, resolve_cell
from harness.composition import Composer
from harness.hardware import detect_platform
from harness.overrides import parse_override
from harness.records import PathChoice
from harness.validation import validate_cell
from paths.api import Platform, UserError
from paths.kernels.gates import Formats
from paths.select import Selection, select

AUTO = "auto"  # the name of the path, and its impl
_OWN_OPTION = "path.options.dsa"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One cell's overrides and what they compose to; no path is called auto any more."""

    overrides: tuple[str, ...]
    composed: dict[str, Any]
    chosen: PathChoice | None  # None: the path was named


def compose_choice(composer: Composer, overrides: Sequence[str], platform: Platform | None = None) -> Choice:
    """Compose one cell on `platform` (None: as its device says). Raises UserError."""
    words = tuple(overrides)
    if not any(text.lstrip("+") == f"path={AUTO}" for text in words):
        return Choice(overrides=words, composed=composer.compose(words), chosen=None)
    own = tuple(text for text in words if not _is_other_option(text))
    selection = _select(composer, own, platform)
    rest = [text for text in words if text in own and _key(text) not in ("path", _OWN_OPTION)]
    named = (f"+path={selection.path}", *rest, *(text for text in words if text not in own))
    chosen = PathChoice(
        requested=AUTO, chosen=selection.path, reason=selection.reason, warnings=list(selection.warnings)
    )
    return Choice(overrides=named, composed=composer.compose(named), chosen=chosen)


def make_cell(
    composer: Composer, overrides: Sequence[str], *, revision: str, platform: Platform | None = None
) -> Cell:
    """The validated cell of one choice of overrides. Raises UserError."""
    choice = compose_choice(composer, overrides, platform)
    config = validate_cell(choice.composed, composer.groups["path"])
    cell = resolve_cell(
        config,
        overrides=choice.overrides,
        platform=platform or detect_platform(config.device),
        revision=revision,
    )
    return dataclasses.replace(cell, chosen=choice.chosen)


def _key(text: str) -> str:
    return parse_override(text).key_or_group


def _is_other_option(text: str) -> bool:
    """A key of the path that is not chosen yet."""
    return _key(text).startswith("path.") and _key(text) != _OWN_OPTION


def _select(composer: Composer, overrides: Sequence[str], platform: Platform | None) -> Selection:
    composed = composer.compose(overrides)
    config = validate_cell(composed, composer.groups["path"])
    here = platform or detect_platform(config.device)
    cell = resolve_cell(config, overrides=tuple(overrides), platform=here, revision="")
    return select(
        architecture=cell.model.architecture,
        platform=here,
        formats=Formats.of(cell.engine),
        dsa=_explicit(config.path.options),
        triton=find_spec("triton") is not None,
    )


def _explicit(options: Mapping[str, Any]) -> bool | None:
    """The user's own choice. Raises UserError."""
    value = options.get("dsa")
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{_OWN_OPTION}={value}: not allowed; allowed: true, false, null (by the rules)")
    return value
