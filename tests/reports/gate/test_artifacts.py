"""verdict.json, summary.md and junit.xml: contract, hostile names, size."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

import reports.gate
from reports.compare.words import Verdict
from reports.gate.banner import banner
from reports.gate.junit import write_junit
from reports.gate.outcome import judge
from reports.gate.summary import MOST_BYTES, escape, render_summary
from reports.gate.verdict import ArmSummary, VerdictFile, build_verdict, json_schema
from tests.reports.compare.arms import broken, cell, compare_cells, launch, tier

BASE = [100.0, 100.4, 99.7, 100.1]
HOSTILE = [
    "<script>alert(1)</script>",
    "a | b `code` | **c**",
    "\"quotes\" 'single' & ampersand",
    "x" * 300,
    "[link](http://example.org) ![image](x)",
    "line\nbreak\r\n| --- |\x00\x1b[31m",
    "@someone #12 ~~gone~~ <b>",
]


def verdict_of(comparison, **more) -> VerdictFile:
    arms = {
        arm: ArmSummary(name=f"path_{arm}", runs=["r"], revisions=["abc"])
        for arm in ("baseline", "candidate")
    }
    return build_verdict(comparison, judge(comparison), run_id="run-1", **(arms | more))


def every_verdict():
    """A comparison with each verdict word at least once."""

    def values(factor):
        return [value * factor for value in BASE]

    base = [cell("b", BASE, cell_id=name) for name in ("pass", "improved", "fail", "missing", "invalid")]
    base += [
        cell("b", [100, 101, 99, 100], cell_id="open"),
        cell("b", BASE, cell_id="dtype", identity={"v": "1"}),
    ]
    cand = [
        cell("c", values(factor), cell_id=n) for n, factor in (("pass", 1), ("improved", 1.2), ("fail", 0.7))
    ]
    cand += [cell("c", [broken("c", p, "PATH_MISMATCH") for p in range(4)], cell_id="invalid")]
    cand += [
        cell("c", [97, 110, 90, 94], cell_id="open"),
        cell("c", BASE, cell_id="dtype", identity={"v": "2"}),
    ]
    cand += [cell("c", BASE, cell_id="new")]
    return compare_cells(base, cand, tier=tier())


def test_every_verdict_is_counted_listed_and_valid():
    verdict = verdict_of(every_verdict())
    assert all(verdict.counts[word] == 1 for word in Verdict), verdict.counts
    text = verdict.model_dump_json()
    data = json.loads(text, parse_constant=lambda literal: pytest.fail(literal))
    jsonschema.Draft202012Validator(json_schema()).validate(data)
    assert VerdictFile.model_validate_json(text) == verdict
    assert (data["verdict"], data["exit_code"]) == ("INVALID", 6)


def test_the_shipped_schema_is_that_of_the_model():
    shipped = Path(next(iter(reports.gate.__path__))) / "verdict.schema.json"
    assert json.loads(shipped.read_text(encoding="utf-8")) == json_schema()


def test_every_field_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "verdict.md").read_text(encoding="utf-8")
    schema = json_schema()
    fields = {name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", {})}
    assert len(fields) > 30
    assert [name for name in sorted(fields) if f"`{name}`" not in text] == []


def test_numbers_of_an_entry():
    entry = next(one for one in verdict_of(every_verdict()).gates if one.cell == "fail")
    assert entry.change_pct == pytest.approx(-30) and entry.loss_pct == pytest.approx(100 / 0.7 - 100)
    assert entry.ci_pct[0] <= entry.loss_pct <= entry.ci_pct[1]
    assert (entry.n_pairs, entry.signs, entry.margin_pct) == (4, (4, 0, 0), pytest.approx(2.0))


def test_infinite_and_undefined_become_null():
    lost = compare_cells([cell("b", [0.0] * 4)], [cell("c", BASE)], tier=tier())
    entry = verdict_of(lost).gates[0]
    assert entry.change_pct is None and entry.loss_pct is None and "zero" in entry.reason
    assert "Infinity" not in verdict_of(lost).model_dump_json() and not math.isnan(entry.candidate)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def rows_of(markdown: str) -> list[str]:
    return [line for line in markdown.splitlines() if line.startswith("| ") and not line.startswith("| |")]


def test_hostile_names_stay_text():
    cells = [f"id{n}" for n in range(len(HOSTILE))]
    base, cand = (
        [cell(arm, BASE, cell_id=one, name=name) for one, name in zip(cells, HOSTILE, strict=True)]
        for arm in "bc"
    )
    bad = cell(
        "c", [broken("c", p, "FAILED", reason="|<img src=x>`") for p in range(4)], cell_id="z", name="z"
    )
    comparison = compare_cells([*base, cell("b", BASE, cell_id="z")], [*cand, bad], tier=tier())
    arm = ArmSummary(name="|<script>x</script>", runs=["<i>"], revisions=["<u>|"])
    verdict = verdict_of(comparison, baseline=arm, candidate=arm, unexpected_diffs=["<b>|"])
    text = render_summary(verdict)
    parser = _Tags()
    parser.feed(text)
    assert parser.tags == []
    rows = rows_of(text)
    assert len(rows) == len(HOSTILE) + 1 and {row.count("|") for row in rows} == {11}
    assert "\x00" not in text and "\x1b" not in text and "](" not in text


def test_escape_keeps_metric_names_and_cuts_long_ones():
    assert escape("tpot_pooled_ms") == "tpot_pooled_ms" and escape("_a_") == "&#95;a&#95;"
    assert len(escape("x" * 300)) == 80 and escape("a\n\nb") == "a b"


def test_a_summary_of_500_cells_is_under_60_kb_and_shows_the_worst_first():
    names = [f"GLM-5.2 fp8 mtp=3 isl=1024 osl=1024 machine=h200 c{n}" for n in range(500)]
    base = [cell("b", BASE, cell_id=name) for name in names]
    cand = [cell("c", [50.0] * 4 if name.endswith("c499") else BASE, cell_id=name) for name in names]
    text = render_summary(verdict_of(compare_cells(base, cand, tier=tier())))
    rows = rows_of(text)
    assert len(text.encode()) < MOST_BYTES and 100 < len(rows) < 500
    assert "c499" in rows[0] and "FAIL" in rows[0]
    assert f"{500 - len(rows)} more rows" in text


def test_few_rows_keep_the_order_of_cells():
    rows = rows_of(render_summary(verdict_of(every_verdict())))
    assert [row.split("|")[2].strip() for row in rows][:4] == ["dtype", "fail", "improved", "invalid"]


def test_an_empty_comparison_renders():
    verdict = verdict_of(compare_cells([], [], tier=tier()))
    assert verdict.exit_code == 7 and "Nothing was compared" in render_summary(verdict)


@pytest.mark.parametrize("blocking", [True, False])
def test_junit(tmp_path, blocking):
    write_junit(verdict_of(every_verdict()), tmp_path / "junit.xml", blocking=blocking)
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    cases = {case.get("name"): case for case in root.iter("testcase")}
    kinds = {name: [child.tag for child in case if child.tag != "properties"] for name, case in cases.items()}
    open_kind = "failure" if blocking else "skipped"
    assert kinds == {
        "pass out_tps": [], "improved out_tps": [], "fail out_tps": ["failure"], "open out_tps": [open_kind],
        "invalid cell": ["error"], "missing cell": ["error"], "new cell": [], "dtype cell": [open_kind],
        "run": ["error"],
    }  # fmt: skip
    suite = next(root.iter("testsuite"))
    assert suite.get("tests") == "9" and suite.get("failures") == ("3" if blocking else "1")
    properties = {one.get("name"): one.get("value") for one in cases["fail out_tps"].iter("property")}
    assert properties["n_pairs"] == "4" and float(properties["change_pct"]) == pytest.approx(-30)


def test_junit_with_hostile_names(tmp_path):
    base, cand = (
        [cell(arm, BASE, cell_id=str(n), name=name) for n, name in enumerate(HOSTILE)] for arm in "bc"
    )
    write_junit(verdict_of(compare_cells(base, cand, tier=tier())), tmp_path / "junit.xml", blocking=True)
    names = [
        case.get("name") for case in ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    ]
    assert "<script>alert(1)</script> out_tps" in names and len(names) == len(HOSTILE) + 1


def test_a_green_run_case_only_when_something_was_examined(tmp_path):
    write_junit(verdict_of(compare_cells([], [], tier=tier())), tmp_path / "junit.xml", blocking=False)
    assert (
        ElementTree.parse(tmp_path / "junit.xml").getroot().find(".//testcase[@name='run']/error") is not None
    )


@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_the_banner_is_a_plain_sentence(factor):
    cand = [launch("c", pair, value * factor) for pair, value in enumerate(BASE)]
    said = banner(verdict_of(compare_cells([cell("b", BASE)], [cell("c", cand)], tier=tier())))
    if factor == 1.0:
        assert said == "path_candidate is as good as path_baseline in all 1 gated verdict (0 improved)."
    else:
        assert said.startswith(
            "path_candidate is worse than path_baseline in 1 of 1 gated verdict;"
            " the worst: c16, out_tps: loss 66"
        )
