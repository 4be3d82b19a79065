"""Contributions of a ladder on the page: numbers, gaps, drawings and their names."""

import math
import re
from dataclasses import dataclass

import pytest

from reports.attribution import attribute
from reports.attribution_section import attribution_section, percent
from reports.html import write_report
from reports.load import load_run
from reports.tables import signed
from reports.waterfall import draw_waterfall
from tests.reports.ladders import PATHS, SPEEDS, climb, experiment, only


@pytest.fixture
def page(run_folder, parse):
    """The parsed section of a run folder's page."""

    def build(records, made=None, **changes):
        folder = run_folder(records, experiment=made or experiment(), **changes)
        return parse(write_report(folder).read_text(encoding="utf-8"))

    return build


def rows_of(table):
    return [[cell.text for cell in row.all("td")] for row in table.all("tr") if row.all("td")]


def test_a_run_without_experiment_has_no_section(run_folder, record):
    assert attribution_section(load_run(run_folder([record(0)]))) is None


def test_numbers_of_the_section(page):
    section = page(climb()).by_id("attribution")
    contributions, throughput, tpot = section.all("table")
    assert rows_of(contributions)[0] == [
        "A to second first → second",
        "+0.693 +0.598 … +0.847 mean +0.713 [+0.501, +0.925]",
        "+100 %, faster in all of 3 rounds 3 of 3 rounds",
        "+0.693 +0.598 … +0.847 mean +0.713 [+0.501, +0.925]",
        "+100 %, faster in all of 3 rounds 3 of 3 rounds",
    ]  # fmt: skip
    assert [row[0] for row in rows_of(contributions)][-1] == "Σ total first → third"
    assert rows_of(throughput) == [
        ["round 1", "+0.693", "−0.288", "+0.405"],
        ["round 2", "+0.598", "−0.105", "+0.492"],
        ["round 3", "+0.847", "−0.336", "+0.511"],
    ]
    assert rows_of(tpot) == rows_of(throughput)
    assert "the medians add up to +0.405, the median of the totals is +0.492" in section.text
    assert "percentages do not add" in section.text and "in 1 of 4 cases" in section.text


def test_what_is_left_out_is_said_and_never_a_zero(page):
    broken = {(number, "second"): {"state": "PATH_MISMATCH", "reason": "ran V1"} for number in (1, 2, 3)}
    section = page(climb(broken=broken)).by_id("attribution")
    boxes = [one.text for one in section.all("div") if "warn" in one.attributes.get("class", "")]
    said = "second: PATH_MISMATCH: ran V1. Left out of: to second, to third."
    assert boxes == [f"⚠ Round {number}, {said}" for number in (1, 2, 3)]
    rows = rows_of(section.all("table")[0])
    assert rows[0][1:3] == ["—", "—, no round has a value of both arms 0 of 3 rounds"]
    assert rows[2][1].startswith("+0.492")
    assert "the bars do not lead to the total" in section.text
    assert "+0.000" not in section.text


def test_an_interrupted_experiment_shows_what_it_has(page):
    plan = [{"cells": [{}]}] * 9
    section = page(climb()[:4], finished_at=None, plan=plan).by_id("attribution")
    assert "5 of 9 planned cells have no record" in section.text
    rows = rows_of(section.all("table")[0])
    assert rows[0][2] == "+100 %, not distinguishable from 0 over 1 round 1 of 3 rounds"
    empty = page([], plan=plan).by_id("attribution")
    assert "9 of 9 planned cells have no record" in empty.text and "No cell of the ladder" in empty.text
    assert "planned cells" not in page(climb(), plan=plan).by_id("attribution").text


def test_drawings_are_told_apart_without_colour_and_their_ids_are_their_own(page):
    unclear = {1: (100.0, 200.0, 210.0), 2: (100.0, 200.0, 190.0), 3: (100.0, 200.0, 201.0)}
    root = page(climb(unclear, concurrency=1) + climb(start=9))
    figures = root.by_id("attribution").all("figure")
    assert len(figures) == 4
    legend = [entry.text for entry in figures[0].all("li")]
    assert legend == [
        "▲ A to second (first → second): faster in all of 3 rounds",
        "○ B to third (second → third): not distinguishable from 0 over 3 rounds",
        "▲ Σ first → third: faster in all of 3 rounds",
    ]
    assert [entry.text[0] for entry in figures[2].all("li")] == ["▲", "▼", "▲"]
    texts = {one.text for one in figures[2].all("text")}
    assert {"A", "B", "Σ", "+0.693", "−0.288", "+0.492"} <= texts
    ids = [one.attributes["id"] for one in root.walk() if "id" in one.attributes]
    assert len(ids) == len(set(ids))


@dataclass
class Box:
    top: float
    bottom: float

    @property
    def height(self):
        return self.bottom - self.top  # y grows downwards


def bars_of(svg):
    """The bars of a drawing, which are the only paths of this line width."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*stroke-width: 1\.4', svg)
    heights = [[float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)] for path in paths]
    return [Box(top=min(ys), bottom=max(ys)) for ys in heights]


def test_a_bar_starts_where_the_one_before_it_ended():
    """Heights of the drawing itself, in its own units: A up, B down from there, Σ from 0."""
    ladder = only(attribute(experiment(), climb({1: SPEEDS[1], 2: SPEEDS[1]}))).ladders[0]
    (a, b, total) = bars_of(draw_waterfall(ladder, prefix="p").svg)
    assert a.top == pytest.approx(b.top, abs=0.01) and a.bottom == pytest.approx(total.bottom, abs=0.01)
    assert b.bottom == pytest.approx(total.top, abs=0.01)
    assert a.height / b.height == pytest.approx(math.log(2) / math.log(200 / 150), rel=1e-3)


def test_nothing_to_draw_is_no_drawing():
    broken = {
        (number, path): {"state": "FAILED", "reason": "x"} for number in (1, 2, 3) for path in PATHS[:2]
    }
    for ladder in only(attribute(experiment(), climb(broken=broken))).ladders:
        assert draw_waterfall(ladder, prefix="p") is None


def test_hostile_names_stay_text(page):
    names = ["<b>a</b>", '$x_1$ & "q"', "{{ rows }}"]
    root = page(climb(paths=names), experiment(3, names))
    cells = [row[0] for row in rows_of(root.by_id("attribution").all("table")[0])]
    assert cells[0] == f"A to {names[1]} {names[0]} → {names[1]}"
    assert not root.by_id("attribution").all("b")[0].text.startswith("a")


def test_rounds_are_told_apart_in_the_table_of_results(page):
    root = page(climb())
    labels = [row[0] for row in rows_of(root.by_id("results"))]
    assert labels == [f"tiny_v32 c=16 · round {number}" for number in (1, 2, 3) for _ in PATHS]


def test_logarithms_and_percentages_as_text():
    assert [signed(value) for value in (0.0, 0.5, -0.25)] == ["+0.000", "+0.500", "−0.250"]
    assert [percent(math.log(value)) for value in (2, 0.5, 1, 1.01)] == [
        "+100 %",
        "−50.0 %",
        "0 %",
        "+1.00 %",
    ]
