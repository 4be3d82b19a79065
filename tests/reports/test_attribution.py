"""Contributions of a ladder: exact on made-up records, and never a number where an arm is missing."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise

import pytest

from harness.experiment import Experiment
from harness.records import Check, Metric
from reports.attribution import TOTAL, attribute
from reports.attribution_section import attribution_section, percent
from reports.html import write_report
from reports.load import load_run
from reports.tables import signed
from reports.waterfall import draw_waterfall

PATHS = ["first", "second", "third"]


def experiment(rounds=3, paths=PATHS):
    ladder = [{"path": path} | ({"switch": f"to {path}"} if path != paths[0] else {}) for path in paths]
    return Experiment.model_validate({"name": "made up", "rounds": rounds, "ladder": ladder})


def metrics(out_tps, tpot_ms):
    return {
        "out_tps": Metric(value=out_tps, unit="tok/s", better="up", n=9),
        "tpot_pooled_ms": Metric(value=tpot_ms, unit="ms", better="down", n=9),
    }


# round → throughput of each arm
SPEEDS = {1: (100.0, 200.0, 150.0), 2: (110.0, 200.0, 180.0), 3: (90.0, 210.0, 150.0)}


@pytest.fixture
def climb(record, failed):
    """Records of a whole ladder; `broken` maps (round, path) to changes of that record, or to None."""

    def make(speeds=SPEEDS, *, paths=PATHS, concurrency=16, broken=None, start=0):
        records = []
        for number, values in speeds.items():
            for path, speed in zip(paths, values, strict=True):
                order = start + len(records)
                changes = {} if broken is None else broken.get((number, path), {})
                if changes is None:
                    continue
                build = failed if "state" in changes and changes["state"] != "FALLBACK" else record
                common = {"metrics": metrics(speed, 4000.0 / speed)} if build is record else {}
                requested = {"path": path, "concurrency": concurrency, "options": {"gap_ms": speed}}
                records.append(build(order, **(common | {"round": number, "requested": requested} | changes)))
        return records

    return make


def only(conditions):
    (condition,) = conditions
    return condition


def test_each_contribution_is_the_logarithm_of_its_ratio(climb):
    throughput, tpot = only(attribute(experiment(), climb())).ladders
    assert (throughput.metric, tpot.metric) == ("out_tps", "tpot_pooled_ms")
    for ladder in (throughput, tpot):  # TPOT is 4000 / speed here, so its negative logarithm is the same
        for place, one in enumerate(ladder.contributions):
            assert one.by_round == pytest.approx(
                {number: math.log(v[place + 1] / v[place]) for number, v in SPEEDS.items()}, abs=1e-12
            )
        assert [one.switch for one in ladder.contributions] == ["to second", "to third"]
        assert [(one.before, one.after) for one in ladder.contributions] == list(pairwise(PATHS))
        assert ladder.total.by_round == pytest.approx(
            {number: math.log(v[-1] / v[0]) for number, v in SPEEDS.items()}, abs=1e-12
        )
    up, down = throughput.contributions
    assert up.middle == pytest.approx(math.log(200 / 100)) and up.range == pytest.approx(
        (math.log(200 / 110), math.log(210 / 90))
    )
    assert down.middle == pytest.approx(math.log(150 / 200)) and (up.n, up.rounds) == (3, 3)


@pytest.mark.parametrize("arms", [2, 3, 5, 12])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_within_a_round_the_logarithms_add_up_to_the_total(climb, arms, scale):
    paths = [f"p{place}" for place in range(arms)]
    speeds = {
        number: tuple(scale * (1 + (7 * place + 3 * number) % 11) for place in range(arms))
        for number in range(1, 5)
    }
    condition = only(attribute(experiment(4, paths), climb(speeds, paths=paths)))
    for ladder in condition.ladders:
        assert ladder.total.n == 4
        for number, total in ladder.total.by_round.items():
            parts = math.fsum(one.by_round[number] for one in ladder.contributions)
            assert parts == pytest.approx(total, abs=1e-12)


def test_conditions_stay_apart_and_are_named_by_what_differs(climb):
    slower = {number: tuple(value / 2 for value in values) for number, values in SPEEDS.items()}
    records = climb(concurrency=1) + climb(slower, start=9)
    records += climb({1: SPEEDS[1]}, start=18, broken={(1, "third"): {"round": None}})
    conditions = attribute(experiment(), records[:18])
    assert [one.title for one in conditions] == ["concurrency=1", "concurrency=16"]
    assert [one.ladders[0].total.n for one in conditions] == [3, 3]
    # a record that belongs to no round belongs to no ladder
    assert attribute(experiment(), records[-1:]) == []
    assert attribute(experiment(), []) == []


@pytest.mark.parametrize(
    "state", ["FAILED", "TIMEOUT", "OOM", "PATH_MISMATCH", "INVALID", "SKIPPED", "UNSUPPORTED"]
)
def test_an_arm_without_numbers_takes_its_round_from_the_switches_beside_it(climb, state):
    records = climb(broken={(2, "second"): {"state": state, "reason": "it broke"}})
    condition = only(attribute(experiment(), records))
    for ladder in condition.ladders:
        assert [sorted(one.by_round) for one in ladder.contributions] == [[1, 3], [1, 3]]
        assert sorted(ladder.total.by_round) == [1, 2, 3]
    (gap,) = condition.gaps
    assert (gap.round, gap.path, gap.reason) == (2, "second", f"{state}: it broke")
    assert gap.touches == ["to second", "to third"]


@pytest.mark.parametrize(
    ("path", "touches", "rounds"),
    [
        ("first", ["to second", TOTAL], ([1, 2], [1, 2, 3], [1, 2])),
        ("third", ["to third", TOTAL], ([1, 2, 3], [1, 2], [1, 2])),
    ],
)
def test_an_end_that_is_missing_takes_its_round_from_the_total_too(climb, path, touches, rounds):
    condition = only(attribute(experiment(), climb(broken={(3, path): None})))
    ladder = condition.ladders[0]
    found = tuple(sorted(one.by_round) for one in [*ladder.contributions, ladder.total])
    assert found == rounds
    (gap,) = condition.gaps
    assert gap.touches == touches and gap.reason == "no record: the run ended before"


def test_a_metric_without_value_is_a_gap_of_that_metric_alone(climb):
    missing = Metric(value=None, unit="ms", better="down", n=0, reason="every answer has one token")
    zero = Metric(value=0.0, unit="tok/s", better="up", n=9)
    records = climb(
        broken={
            (1, "third"): {"metrics": metrics(150.0, 1.0) | {"tpot_pooled_ms": missing}},
            (2, "third"): {"metrics": metrics(150.0, 1.0) | {"out_tps": zero}},
            (3, "third"): {"metrics": {}},
        }
    )
    condition = only(attribute(experiment(), records))
    throughput, tpot = (ladder.contributions[1] for ladder in condition.ladders)
    assert (sorted(throughput.by_round), sorted(tpot.by_round)) == ([1], [2])
    assert sorted((gap.round, gap.reason) for gap in condition.gaps) == [
        (1, "TPOT: every answer has one token"),
        (2, "output throughput is 0, which has no logarithm"),
        (3, "TPOT: not recorded"),
        (3, "output throughput: not recorded"),
    ]


@pytest.mark.parametrize(
    ("seconds", "clear", "words"),
    [
        ((200, 210, 220), True, "faster in all of 3 rounds"),
        ((50, 60, 70), True, "slower in all of 3 rounds"),
        ((99, 110, 120), False, "not distinguishable from 0 over 3 rounds"),
        ((100, 110, 120), False, "not distinguishable from 0 over 3 rounds"),
        ((100, 100, 100), False, "not distinguishable from 0 over 3 rounds"),
        ((200,), False, "not distinguishable from 0 over 1 round"),
        ((), False, "no round has a value of both arms"),
    ],
)
def test_no_more_is_said_than_the_rounds_show(climb, seconds, clear, words):
    speeds = {number: (100.0, float(second)) for number, second in enumerate(seconds, start=1)}
    records = climb(speeds, paths=PATHS[:2]) or climb(
        {1: (100.0, 1.0)}, paths=PATHS[:2], broken={(1, "second"): None}
    )
    one = only(attribute(experiment(3, PATHS[:2]), records)).ladders[0].contributions[0]
    assert (one.clear, one.words) == (clear, words)


def test_fallbacks_and_failed_checks_count_and_are_named(climb):
    flag = {"checks": {"window": Check(ok=False, detail="short"), "little": Check(ok=True, detail="1 %")}}
    records = climb(
        broken={
            (1, "first"): {"state": "FALLBACK", "reason": "no compiler"},
            (2, "second"): flag,
            (3, "second"): flag,
            (3, "third"): {"state": "FAILED", "reason": "died"} | flag,
        }
    )
    condition = only(attribute(experiment(), records))
    assert condition.cautions == [
        "first ran with a fallback (no compiler): 1 of the 8 cells that count",
        "check window failed: 2 of the 8 cells that count",
    ]
    assert condition.ladders[0].contributions[0].n == 3


# --- as text and drawing ---


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


def test_numbers_of_the_section(page, climb):
    section = page(climb()).by_id("attribution")
    contributions, throughput, tpot = section.all("table")
    assert rows_of(contributions)[0] == [
        "A to second first → second",
        "+0.693 +0.598 … +0.847", "+100 %, faster in all of 3 rounds 3 of 3 rounds",
        "+0.693 +0.598 … +0.847", "+100 %, faster in all of 3 rounds 3 of 3 rounds",
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


def test_what_is_left_out_is_said_and_never_a_zero(page, climb):
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


def test_an_interrupted_experiment_shows_what_it_has(page, climb):
    plan = [{"cells": [{}]}] * 9
    section = page(climb()[:4], finished_at=None, plan=plan).by_id("attribution")
    assert "5 of 9 planned cells have no record" in section.text
    rows = rows_of(section.all("table")[0])
    assert rows[0][2] == "+100 %, not distinguishable from 0 over 1 round 1 of 3 rounds"
    empty = page([], plan=plan).by_id("attribution")
    assert "9 of 9 planned cells have no record" in empty.text and "No cell of the ladder" in empty.text
    assert "planned cells" not in page(climb(), plan=plan).by_id("attribution").text


def test_drawings_are_told_apart_without_colour_and_their_ids_are_their_own(page, climb):
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


def test_a_bar_starts_where_the_one_before_it_ended(climb):
    """Heights of the drawing itself, in its own units: A up, B down from there, Σ from 0."""
    ladder = only(attribute(experiment(), climb({1: SPEEDS[1], 2: SPEEDS[1]}))).ladders[0]
    (a, b, total) = bars_of(draw_waterfall(ladder, prefix="p").svg)
    assert a.top == pytest.approx(b.top, abs=0.01) and a.bottom == pytest.approx(total.bottom, abs=0.01)
    assert b.bottom == pytest.approx(total.top, abs=0.01)
    assert a.height / b.height == pytest.approx(math.log(2) / math.log(200 / 150), rel=1e-3)


def test_nothing_to_draw_is_no_drawing(climb):
    broken = {
        (number, path): {"state": "FAILED", "reason": "x"} for number in (1, 2, 3) for path in PATHS[:2]
    }
    for ladder in only(attribute(experiment(), climb(broken=broken))).ladders:
        assert draw_waterfall(ladder, prefix="p") is None


def test_hostile_names_stay_text(page, climb):
    names = ["<b>a</b>", '$x_1$ & "q"', "{{ rows }}"]
    root = page(climb(paths=names), experiment(3, names))
    cells = [row[0] for row in rows_of(root.by_id("attribution").all("table")[0])]
    assert cells[0] == f"A to {names[1]} {names[0]} → {names[1]}"
    assert not root.by_id("attribution").all("b")[0].text.startswith("a")


def test_rounds_are_told_apart_in_the_table_of_results(page, climb):
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
