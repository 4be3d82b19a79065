"""Sections of the page by themselves: drafts, curves, forest plot, drawings, texts of findings."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import ExitCode
from harness.records import Metric, RecordError
from harness.requests_table import FILE_NAME
from reports.compare.compare import Arms, compare
from reports.compare.effects import signed as as_losses
from reports.compare.estimate import from_pairs
from reports.compare.finding import Finding
from reports.compare.metric_table import METRICS
from reports.compare.words import Verdict
from reports.gate.plan_file import FoundWrong, read_plan, write_plan
from reports.gate.run_gate import judge_folder
from reports.verdict_page.curves import MOST_MARKS, MOST_PANELS, draw_curves, spread
from reports.verdict_page.drafts import drafts
from reports.verdict_page.forest import MOST_ROWS, forest
from reports.verdict_page.inputs import ArmRun, Compared, load_compared
from reports.verdict_page.matrix import decision_matrix
from reports.verdict_page.page import write_comparison
from reports.verdict_page.sketch import HEIGHT, MOST_QUANTILES, WIDTH, load_quantiles, sketches
from reports.verdict_page.words import as_change, effect, signed
from reports.verdict_page.words import interval_text as interval
from tests.reports.compare.arms import cell, compare_cells, floor_for, noisy, tier
from tests.reports.conftest import make_record, parse_page
from tests.reports.verdict_page.judged import compared_folder, judged, page_of


def finding(metric: str, baseline: list[float], candidate: list[float]) -> Finding:
    rule = METRICS[metric]
    losses = as_losses(rule, candidate) - as_losses(rule, baseline)
    estimate = from_pairs(losses, [True, False] * (len(losses) // 2), alpha=0.05, noise=None)
    return Finding(gate="performance", cell_id="c", cell="c", verdict=Verdict.FAIL, gated=True, rule=rule,
                   baseline=baseline[0], candidate=candidate[0], estimate=estimate, margin=0.02,
                   change_pct=100 * (candidate[0] / baseline[0] - 1))  # fmt: skip


def test_a_loss_of_throughput_is_a_fall_and_a_loss_of_tpot_a_rise():
    slower = effect(finding("out_tps", [100.0] * 4, [90.0, 90.1, 89.9, 90.0]))
    assert slower.change == "−10.00 %" and slower.interval.startswith("[−10.") and slower.reading == "worse"
    assert slower.order > 0
    longer = effect(finding("tpot_pooled_ms", [10.0] * 4, [11.0, 11.01, 10.99, 11.0]))
    assert longer.change == "+10.00 %" and longer.interval.startswith("[+9.9") and longer.reading == "worse"
    assert longer.order > 0


def test_shares_change_in_points():
    shown = effect(finding("success_rate", [1.0] * 4, [0.9] * 4))
    assert shown.change == "−10.00 pt" and shown.interval == "[−10.00, −10.00]" and shown.margin == "2.00 pt"
    assert as_change(METRICS["success_rate"], 0.1) == -10.0


@pytest.mark.parametrize(
    ("span", "text"),
    [
        ((-0.001, 0.001), "[0.00, 0.00]"),
        ((-0.4, 1.23456), "[−0.4, +1.2]"),
        ((-40.0, 60.0), "[−40, +60]"),
        (None, ""),
    ],
)
def test_no_digit_more_than_the_interval_supports(span, text):
    assert interval(span) == text


def test_zero_has_no_sign():
    assert (signed(-0.001, 2), signed(0.0, 1), signed(-1.5, 1)) == ("0.00", "0.0", "−1.5")


# --- drafts ---

SPECULATION = {"tpot_pooled_ms": ("ms", "down"), "al": ("tok/step", "up"), "al_emitted": ("tok/step", "up"),
               "c_0": ("fraction", "up"), "out_tps": ("tok/s", "up")}  # fmt: skip


def with_drafts(folder, *, length=2.0, step=5.0, **requested):
    """The candidate has the given acceptance length and time of a verification; the baseline 2.5 and 5 ms."""

    def change(record):
        candidate = record.requested["path"] == "dsa_mrv2"
        al, ms = (length, step) if candidate else (2.5, 5.0)
        wiggle = 1 + 0.001 * ((record.pair + candidate) % 3)
        values = {
            "tpot_pooled_ms": ms * wiggle / al,
            "al": al,
            "al_emitted": al,
            "c_0": 0.8,
            "out_tps": al / ms,
        }
        metrics = {
            name: Metric(value=values[name], unit=unit, better=better, n=64)
            for name, (unit, better) in SPECULATION.items()
        }
        asked = record.requested | {"mtp": 3, "mtp_mode": "real"} | requested
        return record.model_copy(update={"requested": asked, "metrics": metrics})

    return compared_folder(folder, loads=(16,), change=change)


def test_terms_of_a_change_add_up_and_have_intervals(tmp_path):
    judgement = judge_folder(with_drafts(tmp_path / "run-1", length=2.0, step=5.5))
    found = drafts(judgement.comparison, decision_matrix(judgement.comparison).rows)
    assert found is not None and not found.forced
    (row,) = found.rows
    means = [float(text.split(" ")[0].replace("−", "-")) for text in row.terms]
    assert means[0] == pytest.approx(math.log(2.0 / 2.5), abs=1e-3)  # acceptance
    assert means[1] == 0.0  # nothing more was cut
    assert means[2] == pytest.approx(-math.log(5.5 / 5.0), abs=3e-3)  # a verification takes longer
    assert sum(means[:3]) == pytest.approx(means[3], abs=2e-3)
    assert row.pairs == 4 and all("[" in text for text in row.terms)
    assert row.length is not None and row.length.change == "−20.00 %"
    (plot,) = found.plots
    assert plot.svg.startswith("<svg") and [entry.letter for entry in plot.legend] == ["A", "B", "C", "Σ"]


def test_cells_whose_drafts_nobody_counted_are_named(tmp_path):
    folder = compared_folder(tmp_path / "run-1", loads=(1, 16), requested={"mtp": 3})
    root = parse_page(page_of(folder).strip()[15:])
    assert (
        "of 2 cells with drafts neither arm says how many were accepted: 1, 2." in root.by_id("drafts").text
    )


def test_forced_lengths_are_warned_of_and_cells_without_drafts_have_no_row(tmp_path):
    root = parse_page(page_of(with_drafts(tmp_path / "run-1", mtp_mode="forced")).strip()[15:])
    assert "⚠ Some cells have forced acceptance" in root.by_id("drafts").text
    judgement = judge_folder(with_drafts(tmp_path / "run-2", mtp=0))
    assert drafts(judgement.comparison, decision_matrix(judgement.comparison).rows) is None


# --- curves ---


def test_a_spread_is_a_geometric_mean_with_a_t_interval_of_logarithms():
    found = spread([100.0, 110.0, 121.0])
    assert found.mean == pytest.approx(110.0)
    half = 2.919986 * math.log(1.1) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((110 * math.exp(-half), 110 * math.exp(half)), rel=1e-6)
    one = spread([5.0])
    assert (one.low, one.mean, one.high) == pytest.approx((5.0, 5.0, 5.0))
    assert spread([]) is None and spread([1.0, 0.0]) is None


def arms_of(requests, metrics=("out_tps_per_gpu", "interactivity", "tpot_pooled_ms", "ttft_p50_ms")):
    sides = {}
    for arm in "bc":
        cells = [
            cell(
                arm,
                [dict.fromkeys(metrics, value) for value in noisy(10.0, 0.01, 2, place)],
                cell_id=f"{place}",
                requested=requested | {"path": arm},
            )
            for place, requested in enumerate(requests)
        ]
        sides[arm] = {one.cell_id: one for one in cells}
    return compare(Arms(baseline=sides["b"], candidate=sides["c"], interleaved=True), tier=None)


def test_throughput_per_gpu_against_interactivity_and_times_against_load():
    found = arms_of([{"concurrency": load} for load in (1, 16, 64)])
    ((panel,), note) = draw_curves(found, ("generic <b>", "dsa"), {})
    assert note == "" and [plot.title for plot in panel.plots] == [
        "Throughput per GPU against interactivity, labelled with the load",
        "TPOT, pooled against concurrency",
        "TTFT, median against concurrency",
    ]
    assert [entry.name for entry in panel.plots[0].legend] == ["baseline: generic <b>", "candidate: dsa"]
    assert "<b>" not in panel.plots[0].svg


def test_numbers_of_other_tools_are_completed_from_what_they_have():
    """Throughput per GPU from the GPUs, interactivity from the mean TPOT; without a TPOT over the load."""
    found = arms_of([{"concurrency": 1, "gpus": 4}], ("out_tps", "tpot_mean_ms"))
    ((panel,), _) = draw_curves(found, ("b", "c"), {})
    assert [plot.title for plot in panel.plots] == [
        "Throughput per GPU against interactivity, labelled with the load",
        "TPOT, mean of requests against concurrency",
    ]
    ((panel,), _) = draw_curves(arms_of([{"concurrency": 1}], ("out_tps",)), ("b", "c"), {})
    assert [plot.title for plot in panel.plots] == ["Output throughput against concurrency"]


def test_an_open_loop_counts_from_the_schedule():
    found = arms_of([{"request_rate": 2.0}], ("ttft_p50_ms", "ttft_sched_p50_ms"))
    ((panel,), _) = draw_curves(found, ("b", "c"), {})
    assert [plot.title for plot in panel.plots] == ["TTFT from schedule, median against request rate"]


def test_the_groups_with_the_worst_cells_are_drawn_first():
    found = arms_of([{"concurrency": 1, "isl": isl} for isl in (1, 63, 100, 111, 999, 1000)])
    panels, note = draw_curves(found, ("b", "c"), {"5": 0} | {str(place): 6 for place in range(5)})
    assert len(panels) == MOST_PANELS and panels[0].title == "isl=1000"
    assert note == "drawn are 4 of 6 groups of cells, those with the worst verdicts"


def test_many_loads_are_thinned_and_that_is_said():
    found = arms_of([{"concurrency": load} for load in range(1, MOST_MARKS + 12)], ("tpot_pooled_ms",))
    ((panel,), note) = draw_curves(found, ("b", "c"), {})
    assert f"at most {MOST_MARKS} loads" in note and len(panel.plots) == 1


def test_cells_without_numbers_or_load_draw_nothing():
    assert draw_curves(arms_of([{"concurrency": 1}], ()), ("b", "c"), {})[0] == []
    assert draw_curves(arms_of([{"concurrency": None}, {}]), ("b", "c"), {}) == ([], "")


# --- forest ---


def test_the_forest_has_every_cell_up_to_a_number_then_the_worst():
    def found(count):
        base = [cell("b", noisy(100, 0.001, 4, 0), cell_id=f"c{i:03d}") for i in range(count)]
        slow = [count - 1]
        cand = [
            cell("c", noisy(80 if i in slow else 100, 0.001, 4, 1), cell_id=f"c{i:03d}") for i in range(count)
        ]
        names = [f"c{i:03d}" for i in range(count)]
        matrix = decision_matrix(compare_cells(base, cand, tier=tier(), floor=floor_for(*names)))
        return forest(matrix.columns, matrix.rows)

    few = found(2)
    assert len(few.plots) == 1 and few.left_out == [] and "c001" in few.plots[0].svg
    assert {entry.name for entry in few.plots[0].legend} == {"PASS", "FAIL"}
    many = found(MOST_ROWS + 1)
    assert many.left_out == [
        "Output throughput: 40 of 41 cells are drawn: the worst verdicts and the largest losses"
    ]
    assert "c040" in many.plots[0].svg


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '$x_1$ & "q" ]]>', "é漢字🙂" + "n" * 300])
def test_names_in_a_drawing_are_text(name):
    base, cand = (cell(arm, noisy(100, 0.001, 4, 0), name=name) for arm in "bc")
    matrix = decision_matrix(compare_cells([base], [cand], tier=tier()))
    (plot,) = forest(matrix.columns, matrix.rows).plots
    root = parse_page(plot.svg)
    drawn = {"document", "svg", "g", "defs", "path", "use", "text", "clippath", "rect", "pattern"}
    assert {one.tag for one in root.walk()} <= drawn


def test_an_interval_far_wider_than_the_loss_is_cut():
    base = [cell("b", [100.0, 10.0, 100.0, 10.0])]
    cand = [cell("c", [10.0, 100.0, 11.0, 99.0])]
    matrix = decision_matrix(compare_cells(base, cand, tier=tier()))
    (plot,) = forest(matrix.columns, matrix.rows).plots
    assert "nan" not in plot.svg.lower()


# --- requests ---


def quantiles_of(tmp_path, rows, cells=("cell",)):
    columns = ("launch_id", "cell_id", "phase", "status", "ttft_ms", "tpot_ms")
    table = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    pq.write_table(pa.table(table), tmp_path / FILE_NAME)
    found = compare_cells([cell("b", [1.0, 2.0])], [cell("c", [1.0, 2.0])], tier=tier())
    arms = [
        ArmRun(name=arm, folder=tmp_path, records=[make_record(0, launch_id=arm, cell_id="cell")])
        for arm in "bc"
    ]
    data = Compared(folder=tmp_path, judgement=judged(found), baseline=arms[0], candidate=arms[1])
    return load_quantiles(data, set(cells))


def test_a_damaged_table_of_requests_is_named(tmp_path):
    (tmp_path / "requests.parquet").write_bytes(b"half")
    data = SimpleNamespace(arms=[SimpleNamespace(folder=tmp_path, records=[])] * 2)
    with pytest.raises(RecordError, match=r"requests\.parquet: cannot be read"):
        load_quantiles(data, {"cell"})


def test_only_measured_requests_that_were_ok_are_drawn_in_64_points(tmp_path):
    rows = [("b", "cell", "measured", "ok", float(i), None) for i in range(1000)]
    rows += [("b", "cell", "warmup", "ok", 9e9, 1.0), ("b", "cell", "measured", "timeout", 9e9, 1.0)]
    rows += [("c", "cell", "measured", "ok", 999.0, 2.0), ("x", "cell", "measured", "ok", 1e9, 1.0)]
    rows += [("b", "other", "measured", "ok", 1e9, 1.0)]
    both = quantiles_of(tmp_path, rows)
    baseline, candidate = both
    assert set(baseline) == {("cell", "ttft_ms")} and set(candidate) == {
        ("cell", "ttft_ms"),
        ("cell", "tpot_ms"),
    }
    values = baseline["cell", "ttft_ms"]
    assert len(values) == MOST_QUANTILES and (values[0], values[-1]) == (0.0, 999.0)
    ttft, tpot = sketches("cell", both)
    assert (ttft.title, ttft.low, ttft.high) == ("TTFT", "0", "999")
    points = [point.split(",") for point in ttft.lines[0][0].split()]
    assert points[0] == ["0", str(HEIGHT)] and points[-1] == [str(WIDTH), "0"]
    assert [style for _, style in tpot.lines] == ["cand"] and sketches("none", both) == []


def test_without_a_table_of_requests_nothing_is_drawn(tmp_path):
    both = quantiles_of(tmp_path, [("b", "cell", "measured", "ok", 1.0, 1.0)])
    assert both[0]
    (tmp_path / FILE_NAME).unlink()
    root = parse_page(page_of(compared_folder(tmp_path / "run-1", loads=(1,))).strip()[15:])
    assert root.by_id("cells").all("polyline") == []


# --- what the run ended with ---


def test_a_folder_that_is_judged_again_keeps_what_the_run_found_wrong(tmp_path):
    """An engine that died after its numbers were written is in no record."""
    folder = compared_folder(tmp_path / "run-1", loads=(1,))
    assert judge_folder(folder).verdict.exit_code == 0
    died = FoundWrong(code=ExitCode.INFRASTRUCTURE, why="L003: died")
    write_plan(folder, read_plan(folder).model_copy(update={"found_wrong": [died]}))
    assert judge_folder(folder).verdict.exit_code == 5
    path = write_comparison(folder, judge_folder(folder))
    assert parse_page(path.read_text().strip()[15:]).all("h1")[0].text == "✗ ERROR"
    assert "An engine or the harness failed: L003: died." in path.read_text()


def test_logs_are_addressed_from_the_page(tmp_path):
    folder = compared_folder(tmp_path / "run-1", loads=(1,))
    data = load_compared(folder, judge_folder(folder))
    root = parse_page(page_of(folder).strip()[15:])
    links = [one.attributes["href"] for one in root.by_id("cell-1").all("a")]
    assert links and all(link.startswith("cells/") for link in links)
    assert {arm.folder for arm in data.arms} == {folder.resolve()}
