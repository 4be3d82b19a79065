"""The page of a comparison: parsed, not searched. Every state is there, and nothing else gets in."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re

import pytest

from harness.records import CellState, Check, Metric
from reports.compare.compare import Arms, compare
from reports.compare.finding import Finding
from reports.compare.floor import NO_FLOOR
from reports.compare.judge import ONE_PAIR
from reports.compare.words import RunVerdict, Verdict
from reports.gate.summary import SYMBOL
from reports.verdict_page import page
from reports.verdict_page.forest import Forest
from reports.verdict_page.words import RUN_SYMBOL
from tests.reports.compare.arms import cell, compare_cells, launch, tier
from tests.reports.conftest import parse_page
from tests.reports.gate.test_artifacts import BASE, every_verdict
from tests.reports.test_report_html import HOSTILE, rows_of
from tests.reports.verdict_page.judged import compared_folder, judged, page_of, page_without_records

SECTIONS = ["trust", "arms", "matrix", "forest", "correctness", "drafts", "curves", "cells", "cost",
            "provenance", "words"]  # fmt: skip


def parsed(text):
    return parse_page(text.strip().removeprefix("<!doctype html>"))


def matrix_rows(root):
    return rows_of(root.by_id("matrix"))


@pytest.fixture(autouse=True)
def no_drawings(monkeypatch, request):
    """Figures take longer than all the rest; tests of them ask for the fixture `drawings`."""
    if "drawings" not in request.fixturenames:
        monkeypatch.setattr(page, "draw_curves", lambda comparison, names, ranks: ([], ""))
        monkeypatch.setattr(page, "forest", lambda columns, rows: Forest(plots=[], left_out=[]))


@pytest.fixture
def drawings():
    """Whoever uses this gets the page with its figures."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run-1"


def slower_at(load, times=1.06):
    return lambda this: times if this == load else 1.0


def test_the_order_of_sections_is_that_of_questions(folder):
    root = parsed(page_of(compared_folder(folder)))
    assert [one.attributes["id"] for one in root.all("section")] == SECTIONS
    assert root.all("section")[0] is not root.all("header")[0]


def test_banner_says_the_verdict_in_one_sentence(folder):
    root = parsed(page_of(compared_folder(folder, factor=slower_at(16))))
    header = root.all("header")[0]
    assert header.all("h1")[0].text == "✗ FAIL"
    sentence = header.all("p")[0].text
    assert "dsa_mrv2 is worse than generic_mrv1 in 2 of 9 gated verdicts" in sentence and "c=16" in sentence
    assert "exit code 1 (performance regression)" in header.text
    assert "Example CPU 3000 · 2 cores" in header.text and "took 3 min 24 s" in header.text


def test_matrix_has_verdict_change_and_interval_of_each_cell(folder):
    root = parsed(page_of(compared_folder(folder, factor=slower_at(16, 1.06))))
    rows = matrix_rows(root)
    assert [row[:3] for row in rows] == [
        ["1", "tiny_v32 c=1", "✓ PASS"], ["2", "tiny_v32 c=16", "✗ FAIL"], ["3", "tiny_v32 c=64", "✓ PASS"],
    ]  # fmt: skip
    headers = [one.text for one in root.by_id("matrix-table").all("th")]
    assert headers[3].startswith("Output throughput ↑gated, tok/s") and headers[4].startswith("TPOT ↓gated")
    # TPOT is 6 % up and throughput 1 / 1.06 down, within the noise of the pairs
    tpot = re.fullmatch(r"✗ \+(6\.\d+) % \[\+(\d\.\d+), \+(\d\.\d+)\]", rows[1][4])
    assert tpot and float(tpot[2]) < float(tpot[1]) < float(tpot[3])
    assert abs(float(tpot[1]) - 6.0) < 0.5
    assert rows[1][3].startswith("✗ −5.")


def test_a_matrix_row_leads_to_its_cell_and_its_command(folder):
    root = parsed(page_of(compared_folder(folder)))
    for row in root.by_id("matrix").all("tr")[1:]:
        target = root.by_id(row.all("a")[0].attributes["href"].removeprefix("#"))
        assert target.tag == "details" and row.all("a")[0].text in target.all("summary")[0].text
        commands = [one.text for one in target.all("pre")]
        assert [command.split()[3] for command in commands] == ["path=generic_mrv1", "path=dsa_mrv2"]
        pairs = rows_of(target.all("table")[1])
        assert [pair[:2] for pair in pairs][:2] == [["0", "baseline first"], ["1", "candidate first"]]


def test_every_verdict_word_has_its_symbol_beside_it():
    root = parsed(page_without_records(judged(every_verdict())))
    rows = {row[1]: row for row in matrix_rows(root)}
    words = {"pass": "PASS", "improved": "IMPROVED", "fail": "FAIL", "open": "INCONCLUSIVE", "new": "NEW",
             "invalid": "INVALID", "missing": "MISSING", "dtype": "NOT_COMPARABLE"}  # fmt: skip
    assert len(rows) == len(words) == len(Verdict)
    for name, word in words.items():
        assert rows[name][2].startswith(f"{SYMBOL[Verdict(word)]} {word}"), rows[name]
    assert "no record of the candidate" in rows["missing"][2]
    assert "v 1 against 2" in rows["dtype"][2]
    for element in root.by_id("matrix-table").walk():
        word = (element.attributes.get("class") or "").split()[-1:]
        if word and word[0] in list(Verdict):  # colour never alone
            assert SYMBOL[Verdict(word[0])] in element.text


@pytest.mark.parametrize("word", list(RunVerdict))
def test_every_run_verdict_has_a_banner(word):
    judgement = judged(every_verdict())
    verdict = judgement.verdict.model_copy(update={"verdict": word})
    root = parsed(page_without_records(dataclasses.replace(judgement, verdict=verdict)))
    assert root.all("h1")[0].text == f"{RUN_SYMBOL[word]} {word}"
    assert root.all("title")[0].text == f"{word}: dsa_mrv2 against generic_mrv1"


@pytest.mark.parametrize("state", [state for state in CellState if not state.has_numbers])
def test_a_cell_that_did_not_run_says_so(folder, state):
    def change(record):
        if record.requested["path"] == "dsa_mrv2" and record.requested["concurrency"] == 16:
            update = {"state": state, "reason": "it <broke>", "metrics": {}, "checks": {}}
            return record.model_validate(record.model_dump() | update)
        return record

    root = parsed(page_of(compared_folder(folder, change=change)))
    row = matrix_rows(root)[1]
    assert row[2].split()[:2] in (["∅", "INVALID"], ["∅", "MISSING"])
    assert "it <broke>" in root.by_id("cell-2").text and "it <broke>" in root.by_id("provenance").text
    light = next(one for one in root.by_id("trust").all("li") if "Path proven" in one.text)
    assert ("did not run the path" in light.text) == (state is CellState.PATH_MISMATCH)


def test_a_fallback_is_visible(folder):
    def change(record):
        if record.requested["path"] != "dsa_mrv2":
            return record
        return record.model_validate(record.model_dump() | {"state": "FALLBACK", "reason": "no kernel"})

    root = parsed(page_of(compared_folder(folder, change=change)))
    assert "⚠ Path proven dsa_mrv2 (12 records) ran with a fallback: no kernel" in root.by_id("trust").text
    assert "FALLBACK: no kernel" in root.by_id("cell-1").text


def test_missing_and_new_cells_are_rows(folder):
    def change(record):
        path, load = record.requested["path"], record.requested["concurrency"]
        return None if (path, load) in (("dsa_mrv2", 1), ("generic_mrv1", 64)) else record

    root = parsed(page_of(compared_folder(folder, change=change)))
    rows = matrix_rows(root)
    said = "5 gated verdicts, 3 of which stand on numbers: 3 PASS, 1 MISSING, 1 NEW."
    assert said in root.all("header")[0].text
    assert rows[0][2] == "∅ MISSING no record of the candidate"
    assert rows[2][2] == "+ NEW no such cell in the baseline"


def test_a_metric_that_is_only_in_one_arm(folder):
    """As TPOT of the rows with drafts in the published table."""

    def change(record):
        if record.requested["path"] != "generic_mrv1" or record.requested["concurrency"] != 16:
            return record
        gone = Metric(value=None, unit="ms", better="down", n=0, reason="not published")
        metrics = record.metrics | {"tpot_pooled_ms": gone}
        return record.model_copy(update={"metrics": metrics})

    row = matrix_rows(parsed(page_of(compared_folder(folder, change=change))))[1]
    assert row[4].startswith("+ NEW not in the baseline: not published")


def test_a_zero_baseline_has_no_percentage():
    values = [{"out_tps": value} for value in (0.0, 0.0, 0.0, 0.0)]
    found = compare_cells([cell("b", values)], [cell("c", [{"out_tps": v} for v in BASE])], tier=tier())
    root = parsed(page_without_records(judged(found)))
    (row,) = matrix_rows(root)
    assert row[3].startswith("? INCONCLUSIVE the baseline is zero")
    assert "nan" not in root.by_id("matrix").text.lower() and "inf" not in row[3].lower()
    details = rows_of(root.by_id("cell-1"))[0]
    assert details[2] == "0 tok/s" and details[3] == "100 tok/s"


def test_nan_is_never_shown_as_a_number():
    from reports.compare.cells import NOT_A_NUMBER

    bad = [launch("c", pair, {}, absent={"out_tps": NOT_A_NUMBER}) for pair in range(4)]
    found = compare_cells([cell("b", BASE)], [cell("c", bad)], tier=tier())
    (row,) = matrix_rows(parsed(page_without_records(judged(found))))
    assert row[2] == "∅ INVALID" and row[3] == "∅ INVALID candidate: the value is not a finite number"


def test_not_finite_figures_of_a_finding_render_as_absent():
    """A finding made by hand: nothing upstream should let these through, and nothing here shows them."""
    found = every_verdict()
    nothing = {"estimate": None, "margin": math.inf}
    broken = [
        dataclasses.replace(one, baseline=math.nan, candidate=math.inf, change_pct=math.nan, **nothing)
        for one in found.findings
    ]  # fmt: skip
    root = parsed(page_without_records(judged(dataclasses.replace(found, findings=tuple(broken)))))
    assert not re.search(r"\b(nan|inf)\b", root.by_id("matrix").text + root.by_id("cells").text, re.I)


def test_renamed_cells_are_told(folder):
    def change(record):
        if record.requested["path"] == "dsa_mrv2" and record.requested["concurrency"] == 16:
            return record.model_copy(update={"cell_id": "other", "requested": record.requested | {"isl": 64}})
        return record

    root = parsed(page_of(compared_folder(folder, change=change)))
    rows = [row for row in matrix_rows(root) if row[1] == "tiny_v32 c=16"]
    assert sorted(row[2].split()[1] for row in rows) == ["MISSING", "NEW"]
    assert "the same name, another cell: isl: 32 → 64" in root.by_id("provenance").text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(folder, name):
    def change(record):
        path = record.requested["path"]
        update = {
            "label": f"{path} {name}", "command": f"run {name}", "cell_id": record.cell_id + name,
            "requested": record.requested | {"model": name, f"key {name}": name if path == "dsa_mrv2" else 1},
            "effective": (record.effective or {}) | {"model_class": name + path},
            "checks": {"success": Check(ok=False, detail=name)} if record.pair == 0 else record.checks,
            "log": f"cells/{name}.log",
        }  # fmt: skip
        return record.model_copy(update=update)

    clean = parsed(page_of(compared_folder(folder, loads=(1,))))
    root = parsed(page_of(compared_folder(folder, loads=(1,), change=change, requested={})))
    shown = " ".join(name.split())
    assert matrix_rows(root)[0][1] == shown
    assert any(" ".join(one.text.split()) == f"run {shown}" for one in root.by_id("cells").all("pre"))
    assert tags(root) <= tags(clean) and len(root.all("script")) == 1
    assert {attribute for one in root.walk() for attribute in one.attributes} <= {
        attribute for one in clean.walk() for attribute in one.attributes
    } | {"aria-sort"}


def tags(root):
    return {one.tag for one in root.walk()}


def test_hostile_arms_and_notes_are_text():
    name = HOSTILE[1]
    found = dataclasses.replace(every_verdict(), notes=(name,), exclusions=(name,), floor_problem=name)
    root = parsed(page_without_records(judged(found, names=(name, HOSTILE[0]))))
    assert "b" not in {one.attributes.get("class") for one in root.walk()}
    assert f"against {name}" in root.all("header")[0].text
    assert root.by_id("provenance").text.count(name) >= 3
    assert len(root.all("script")) == 1


def test_an_empty_run(folder, drawings):
    root = parsed(page_of(compared_folder(folder, loads=())))
    assert root.all("h1")[0].text == "∅ INCOMPLETE"
    assert "nothing was compared" in root.by_id("matrix").text
    assert "no cell has an interval" in root.by_id("forest").text


def test_arms_that_cannot_be_compared():
    refused = Arms(baseline={}, candidate={}, interleaved=False, refusal="other machine: cpu a against b")
    found = compare(refused, tier=tier(), floor=NO_FLOOR)
    root = parsed(page_without_records(judged(found)))
    (row,) = matrix_rows(root)
    assert row[1] == "every cell" and row[2].startswith("≠ NOT_COMPARABLE other machine")
    assert "cannot be read" in root.by_id("trust").text


def test_without_a_gate_there_are_numbers_only(folder):
    root = parsed(page_of(compared_folder(folder, tier=None)))
    assert root.all("h1")[0].text == "– NOT_GATED" and "No gate: numbers only" in root.all("header")[0].text
    assert all("not gated" in row[2] for row in matrix_rows(root))


def test_a_single_pair_is_labelled(folder):
    root = parsed(page_of(compared_folder(folder, pairs=1, tier=tier(gated=["out_tps"], low=2, high=2))))
    assert all(row[2] == "? INCONCLUSIVE" for row in matrix_rows(root))
    assert ONE_PAIR in root.by_id("cell-1").text
    assert "single-run: one launch per arm proves nothing" in root.all("header")[0].text


def test_what_differs_between_the_arms(folder):
    root = parsed(page_of(compared_folder(folder)))
    asked, ran = (rows_of(one) for one in root.by_id("arms").all("table"))
    assert asked == [["path", "generic_mrv1", "dsa_mrv2"]]
    assert ["runner", "V1", "V2"] in ran
    assert "✓ Nothing else is known to differ" in root.by_id("arms").text


def test_unexpected_differences_are_warned_of(folder):
    from reports.gate.run_gate import judge_folder
    from reports.verdict_page.inputs import load_compared
    from reports.verdict_page.page import render_comparison

    judgement = judge_folder(compared_folder(folder))
    verdict = judgement.verdict.model_copy(update={"unexpected_diffs": ["torch: 2.1 → <b>2.2"]})
    root = parsed(render_comparison(load_compared(folder, dataclasses.replace(judgement, verdict=verdict))))
    assert [
        box.text for box in root.by_id("arms").all("div") if "box" in box.attributes.get("class", "")
    ] == ["⚠ torch: 2.1 → <b>2.2"]
    assert "⚠ Same machine" in root.by_id("trust").text


def test_lights_of_a_good_comparison_are_all_good(folder):
    found = parsed(page_of(compared_folder(folder))).by_id("trust").all("li")
    assert len(found) == 7
    assert all(one.text.startswith("✓") and one.attributes["class"] == "good" for one in found)


def test_lights_without_floor_and_interleaving():
    found = compare_cells(
        [cell("b", BASE)], [cell("c", BASE)], tier=tier(), floor=NO_FLOOR, interleaved=False
    )
    text = parsed(page_without_records(judged(found))).by_id("trust").text
    assert "✗ Noise floor no A/A run on this machine" in text
    assert "✗ Interleaved the arms were not run in pairs" in text


def test_too_little_power_is_a_red_light():
    wild = [80.0, 120.0, 95.0, 105.0]
    found = compare_cells([cell("b", BASE)], [cell("c", wild)], tier=tier(), floor=None)
    estimate = next(one for one in found.findings if one.estimate).estimate
    weak = dataclasses.replace(estimate, detectable=0.2)
    findings = tuple(dataclasses.replace(one, estimate=weak) for one in found.findings)
    text = (
        parsed(page_without_records(judged(dataclasses.replace(found, findings=findings))))
        .by_id("trust")
        .text
    )
    assert "✗ Power 1 of 1 verdict could only see losses above 1.5 × the margin" in text


def test_correctness_findings_have_a_table():
    fail = Finding(gate="accuracy", cell_id="", cell="arith_gsm <full>", verdict=Verdict.FAIL, gated=True,
                   reason="31 fewer right & 4 more", baseline=None)  # fmt: skip
    root = parsed(page_without_records(judged(every_verdict(), others=[fail])))
    (row,) = rows_of(root.by_id("correctness"))
    assert row[:4] == ["accuracy", "arith_gsm <full>", "accuracy", "✗ FAIL"]
    assert row[-1] == "31 fewer right & 4 more"


def test_costs_of_the_switch_are_medians_per_arm(folder):
    def change(record):
        seconds = 2.0 if record.requested["path"] == "generic_mrv1" else 3.0
        startup = record.startup | {"ready_s": seconds, "compile_cache": "warm"}
        return record.model_copy(update={"startup": startup})

    rows = rows_of(parsed(page_of(compared_folder(folder, change=change))).by_id("cost"))
    costs = {row[0]: row[1:] for row in rows}
    assert costs["ready_s, warm compile cache"] == ["2.00 s", "3.00 s", "+50.0 %"]
    assert costs["kv_cache_bytes"] == ["3.00 MiB", "3.00 MiB", "0.0 %"]
    assert costs["memory_high_water"][:2] == ["1.00 GiB", "1.00 GiB"]


def test_only_the_pages_own_script_may_run(folder):
    root = parsed(page_of(compared_folder(folder)))
    policy = next(one.attributes["content"] for one in root.all("meta") if "http-equiv" in one.attributes)
    (script,) = root.all("script")
    assert script.attributes == {}
    digest = base64.b64encode(hashlib.sha256("".join(script.texts).encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


def test_nothing_is_loaded_and_no_id_repeats(folder, drawings):
    text = page_of(compared_folder(folder, factor=slower_at(16)))
    root = parsed(text)
    for one in root.walk():
        assert "src" not in one.attributes and one.tag not in ("link", "img", "iframe")
        target = one.attributes.get("href") or ""
        assert not re.match(r"\w+:|//", target), target
    ids = [one.attributes["id"] for one in root.walk() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    for name in re.findall(r"url\(#([^)]+)\)", text):
        assert name in ids
    for name in re.findall(r'href="#([^"]+)"', text):
        assert name in ids


def test_the_page_says_the_same_twice_and_in_any_order(folder, drawings):
    compared_folder(folder, factor=slower_at(16))
    first = page_of(folder)
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join(reversed(lines)))
    assert page_of(folder) == first
    assert json.loads(lines[0])["order"] == 0


def test_imported_numbers_claim_no_machine_and_no_engine(folder):
    def change(record):
        return record.model_copy(update={"effective": None, "checks": {}})

    compared_folder(folder, change=change)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"environment": {"imported": {"a.csv": "0f"}}}))
    root = parsed(page_of(folder))
    text = root.by_id("trust").text
    assert "⚠ Same machine nothing says on which machine an arm ran" in text
    assert "⚠ Path proven no record says what the engines ran" in text
    assert "⚠ Checks passed no check of the measurement is recorded" in text
    assert "no record says what the engines ran" in root.by_id("arms").text


def test_the_composed_difference_of_the_run_is_shown(folder):
    compared_folder(folder)
    run = json.loads((folder / "run.json").read_text())
    arm = {"name": "dsa_mrv2", "revision": "aaaa", "arm_ids": []}
    run["comparison"] = {
        "kind": "gate", "baseline": arm | {"revision": "bbbb", "python": "/opt/old/bin/python"},
        "candidate": arm, "tier": None, "most_pairs": 4, "fingerprint": "f",
        "difference": ["debug.step_delay_pct: 0.0 → 30.0 <b>", "path: generic_mrv1 → dsa_mrv2"],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    asked = rows_of(parsed(page_of(folder)).by_id("arms").all("table")[0])
    assert asked == [
        ["debug.step_delay_pct", "0.0", "30.0 <b>"],
        ["path", "generic_mrv1", "dsa_mrv2"],
        ["code", "bbbb", "aaaa"],
        ["interpreter", "/opt/old/bin/python", "the harness's own"],
    ]
