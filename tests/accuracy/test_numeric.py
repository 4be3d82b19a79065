"""The number that an answer gives: spelling, sign, markers, run-on text, truncation."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.numeric import canonical, read_answer, read_target


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$29.00", "29"),
        ("29", "29"),
        ("29.", "29"),
        (r"\$29", "29"),
        ("29.0", "29"),
        ("2.9", "2.9"),
        ("290", "290"),
        ("0.50", "0.5"),
        (".5", "0.5"),
        ("12.", "12"),
        ("1,234", "1234"),
        ("$1,234,567.50", "1234567.5"),
        ("007", "7"),
        ("-0", "0"),
        ("€ 3", "3"),
        ("**29**", "29"),
        (r"\boxed{29}", "29"),
        ("50%", "50"),
    ],
)
def test_the_spelling_of_a_number_does_not_count(text, number):
    for answer in (text, f"#### {text}", f"She has 5 of them.\n#### {text}\n", f"So it is {text}"):
        assert read_answer(answer).text == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### -3", "-3"),
        ("-3", "-3"),
        ("from 2 to -3", "-3"),
        ("5-3", "3"),
        ("5 - 3", "3"),
        ("5 -3", "3"),
        ("\u2212 3", "-3"),
        ("is \u22123", "-3"),
        ("5 \u2212 3", "3"),
        ("(2)-3", "3"),
        ("2\u20133", "3"),
        ("- 3", "3"),
        ("- 3 apples", "3"),
        ("COVID-19", "19"),
        ("-$3.50", "-3.5"),
        ("$-3.50", "-3.5"),
        ("$5-$3", "3"),
        ("x = 3 + -2", "-2"),
        ("--3", "3"),
    ],
)
def test_a_sign_belongs_to_its_number_unless_it_is_none(text, number):
    assert read_answer(text).text == number


@pytest.mark.parametrize(
    ("text", "number", "markers", "run_on"),
    [
        ("#### 8\nQuestion: How many? #### 5", "8", 1, True),
        ("It is 8\n\nQuestion: 5 more?", "8", 0, True),
        ("#### 7 wait, #### 8", "7", 2, False),
        ("3 + 4 = 7\n#### 7\n3 more are left", "7", 1, False),
        ("####\n\n 6", "6", 1, False),
        ("#### The answer is 29 apples and 3 pears", "29", 1, False),
    ],
)
def test_the_first_marker_counts_and_what_follows_the_answer_does_not(text, number, markers, run_on):
    reading = read_answer(text)
    assert (reading.text, reading.markers, reading.run_on) == (number, markers, run_on)


@pytest.mark.parametrize(
    ("text", "truncated", "why"),
    [
        ("", False, "empty"),
        (" \n", False, "empty"),
        ("no idea", False, "unparsable"),
        ("####", False, "unparsable"),
        ("#### none\n5 of them", False, "unparsable"),
        ("", True, "truncated"),
        ("16 - 3 = 13 and then 13", True, "truncated"),
        ("16 - 3 = 13 so she", True, "truncated"),
        ("#### 12", True, "truncated"),
        ("#### 12.", True, "truncated"),
        ("#### 1,", True, "truncated"),
        ("####", True, "truncated"),
    ],
)
def test_an_answer_without_a_number_says_why(text, truncated, why):
    reading = read_answer(text, truncated=truncated)
    assert (reading.value, reading.why_none) == (None, why)


@pytest.mark.parametrize("text", ["#### 12\n", "#### 12 apples", "#### 12 #### 1", "#### 12\nQuestion: and"])
def test_a_cut_behind_a_whole_answer_costs_nothing(text):
    assert read_answer(text, truncated=True).text == "12"


def test_a_target_needs_its_marker():
    assert read_target("2 + 2 = 4\n#### 1,004") == 1004
    assert read_target("2 + 2 = 4") is None
    assert read_target("#### four") is None


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=2))
def test_every_spelling_of_a_value_is_that_value(value):
    for spelled in (f"{value}", f"{value:,}", f"{value:f}"):
        assert read_answer(f"#### {spelled}").value == value
    assert Decimal(canonical(value)) == value


@given(st.text(), st.booleans())
def test_any_text_has_a_number_or_a_reason(text, truncated):
    reading = read_answer(text, truncated=truncated)
    assert (reading.value is None) == (reading.why_none is not None)
