"""The `numeric` filter: which number an answer gives, compared as a value and not as text. Pure.

    read_answer("She earns $29.\\n#### $29.00").value == read_target("16 + 13 = 29\\n#### 29")

The rules, in their order (`NUMERIC_VERSION` counts changes of them):

1. Text from the next `Question:` on is run-on and is cut off.
2. With a `####` marker the answer is the first number on the first line that is not blank behind the first
   marker. Further markers do not change it; they are counted.
3. Without a marker it is the last number of the text. An answer that the length limit cut has none.
4. A number at the very end of an answer that the length limit cut may lack digits: it is no answer.
5. Currency signs (also escaped, `\\$`), thousands commas, a trailing point and zeros behind a point do not
   count; a sign does. A hyphen behind a number (`5-3`, `2 - 3`) or a letter, or one before a space (a list),
   is no sign; the typographic minus U+2212 is one before a space, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

NUMERIC_VERSION = "1"
MARKER = "####"
RUN_ON = "Question:"

_MINUS = "\u2212"
_NUMBER = re.compile(
    r"(?P<sign>[-\u2212\u2013] ?)?"  # hyphen, minus, en dash
    r"(?:\\?[$€£¥] ?(?P<inner>[-\u2212])?)?"  # $3 and $-3
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
)

Silence = Literal["truncated", "empty", "unparsable"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an answer says: a number, or the class of its having none."""

    value: Decimal | None
    why_none: Silence | None
    markers: int = 0  # before run-on text
    run_on: bool = False  # it went on with a question of its own

    @property
    def text(self) -> str | None:
        """One spelling per value: 29, -3, 0.5, 1234."""
        return None if self.value is None else canonical(self.value)


def read_answer(text: str, *, truncated: bool = False) -> Reading:
    """What `text` answers. `truncated`: the length limit cut it, so its end is missing."""
    answer, cut, _ = text.partition(RUN_ON)
    open_end = truncated and not cut  # behind a whole answer the limit cut nothing of it
    markers = answer.count(MARKER)
    found = _after_marker(answer) if markers else _last_number(answer)
    if found is not None and open_end and (not markers or _touches_end(answer, found)):
        found = None
    if found is not None:
        return Reading(value=_value(answer, found), why_none=None, markers=markers, run_on=bool(cut))
    why: Silence = "truncated" if open_end else "unparsable" if answer.strip() else "empty"
    return Reading(value=None, why_none=why, markers=markers, run_on=bool(cut))


def read_target(text: str) -> Decimal | None:
    """The number behind the marker of a worked answer; None when there is no such number."""
    return read_answer(text).value if MARKER in text else None


def canonical(value: Decimal) -> str:
    """Without exponent, trailing zeros and a negative zero."""
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _after_marker(answer: str) -> re.Match[str] | None:
    start = answer.index(MARKER) + len(MARKER)
    stop = answer.find(MARKER, start)
    for line in re.compile(r"[^\r\n]+").finditer(answer, start, len(answer) if stop < 0 else stop):
        if line[0].strip():
            return _NUMBER.search(answer, line.start(), line.end())
    return None


def _last_number(answer: str) -> re.Match[str] | None:
    found = None
    for match in _NUMBER.finditer(answer):
        found = match
    return found


def _touches_end(answer: str, number: re.Match[str]) -> bool:
    """More digits could have followed."""
    return answer[number.end() :] in ("", ".", ",")


def _value(text: str, number: re.Match[str]) -> Decimal:
    size = Decimal(number["digits"].replace(",", ""))
    negative = bool(number["inner"]) or (bool(number["sign"]) and _is_sign(text, number))
    return -size if negative else size


def _is_sign(text: str, number: re.Match[str]) -> bool:
    """A minus belongs to its number, unless it is an operator, a range, a hyphen or the bullet of a list."""
    sign, before = number["sign"], text[: number.start()]
    if len(sign) > 1 and sign[0] != _MINUS:
        return False
    if before[-1:].isalpha() or before[-1:] in ("-", _MINUS):
        return False
    return before.rstrip(" ")[-1:] not in tuple("0123456789)%")
