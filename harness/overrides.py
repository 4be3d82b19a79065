"""Hydra overrides of the command line → one tuple of overrides per cell. Pure."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from harness.errors import one_line
from paths.api import UserError

# one value per run: a sweep over them would compare nothing
NOT_SWEPT = frozenset(
    {
        "cmd",
        "equivalence",
        "equivalence_prompts",
        "experiment",
        "tier",
        "run",
        "baseline",
        "baseline_set",
        "baseline_rev",
        "baseline_python",
        "pairs",
        "resume",
        "baseline_run",
        "candidate_run",
        "file",
        "baseline_file",
        "format",
        "measure_s",
        "warmup_s",
        "timeout_s",
        "request_timeout_s",
        "threads",
        "dry_run",
        "out_dir",
    }
)

_AS_GOOD = 0.2  # names that are so much less alike than the best are no help
OPTIONAL_GROUPS = ("path=", "experiment=", "tier=")  # not in the defaults: Hydra wants a + before them
LITERAL = ("baseline_rev", "baseline_python")  # their values are never read as anything but text
MOST_CELLS = 10_000  # of one command; more is a mistyped range


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean a, b?", or a full stop when nothing is near."""
    found = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)  # best first
    likeness = [difflib.SequenceMatcher(None, name, word).ratio() for name in found]
    matches = [name for name, ratio in zip(found, likeness, strict=True) if ratio > likeness[0] - _AS_GOOD]
    return f"; did you mean {', '.join(matches)}?" if matches else "."


def parse_override(text: str) -> Override:
    """One override. `path=` and `++path=` read as `+path=`, `experiment=`, `tier=` too. Raises UserError."""
    spelled = text.lstrip("+")
    if spelled.startswith(OPTIONAL_GROUPS):
        text = f"+{spelled}"
    text = _quoted_literal(text)
    if "=" not in text and not text.startswith("~"):
        raise UserError(f"{text!r} is not key=value; a flag starts with --, see python -m harness --help")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        if text.endswith(","):
            raise UserError(f"{text}: a value is missing behind the last comma") from error
        raise UserError(f"cannot read {text!r}: {one_line(error)}") from error
    if override.is_delete():
        raise UserError(f"{text!r}: keys cannot be removed; set key=null for the default")
    return override


def _quoted_literal(text: str) -> str:
    """A git ref such as HEAD~1 or v1^{commit} as one string, which Hydra's grammar would not read."""
    key, separator, value = text.partition("=")
    if key not in LITERAL or not separator or value[:1] in ("'", '"', "") or value == "null":
        return text
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{escaped}'"


def expand_sweeps(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Every cell as its overrides, in the order of the command line with the first key outermost.

    `groups` are the configuration groups with their options, for glob(*). Raises UserError for an empty
    sweep, for a key given twice and for a sweep over a key that has one value per run.
    """
    choices: list[list[str]] = []
    seen: set[str] = set()
    for text in overrides:
        override = parse_override(text)
        key = override.key_or_group
        if key in seen:
            raise UserError(f"{key} is given twice; a sweep is one word: {key}=a,b")
        seen.add(key)
        if key in ("experiment", "tier") and override.value() is None:
            continue  # the default: none
        choices.append(_values(override, groups))
    cells = math.prod(len(values) for values in choices)
    if cells > MOST_CELLS:
        raise UserError(
            f"the sweeps make {cells} cells; allowed: up to {MOST_CELLS}; sweep over fewer values"
        )
    return list(itertools.product(*choices))


def _values(override: Override, groups: Mapping[str, Sequence[str]]) -> list[str]:
    if not override.is_sweep_override():
        assert override.input_line is not None
        return [override.input_line]
    key = override.key_or_group
    if key in NOT_SWEPT or key.startswith(("debug", "experiment.", "tier.")):
        raise UserError(f"{override.input_line}: {key} has one value per run; run twice to compare two")
    value = override.value()
    try:
        if isinstance(value, Glob):
            if key not in groups:
                raise UserError(
                    f"{override.input_line}: glob needs a group, one of {', '.join(sorted(groups))}"
                )
            values = list(value.filter(list(groups[key])))
        else:
            if isinstance(value, RangeSweep):
                _check_range(override.input_line, value)
            values = list(itertools.islice(override.sweep_string_iterator(), MOST_CELLS + 1))
    except HydraException as error:
        raise UserError(f"{override.input_line}: {one_line(error)}") from error
    if not values:
        raise UserError(
            f"{override.input_line}: the sweep is empty; give at least one value, as in {key}=a,b"
        )
    return [f"{override.get_key_element()}={text}" for text in values]


def _check_range(text: str | None, sweep: RangeSweep) -> None:
    """Before it is expanded: a long range would eat the memory, one that does not advance would never end."""
    start, stop, step = sweep.start, sweep.stop, sweep.step
    assert start is not None and stop is not None
    if not all(math.isfinite(number) for number in (start, stop, step)) or step == 0:
        raise UserError(f"{text}: start, stop and step must be finite and the step not 0, as in range(1,9,2)")
    if (stop - start) / step > MOST_CELLS or (start + step == start):
        raise UserError(
            f"{text}: allowed are up to {MOST_CELLS} values; give a shorter range or a larger step"
        )
