"""cmd=compare and cmd=import from the command line to the exit code, on run folders that are made up."""

from __future__ import annotations

import json
import locale
import random
import xml.etree.ElementTree as ElementTree

import pytest

from harness import comparing
from harness.__main__ import main
from harness.records import METRIC_DEF_VERSION
from tests.reports.conftest import make_failed, make_record, metrics_at, write_run

# published figures of the change that this project is about: output tok/s of both arms, and the mean TPOT
PUBLISHED = """\
model,weights,gpus,mtp,concurrency,baseline_output_tok_s,candidate_output_tok_s,delta_pct,baseline_mean_tpot_ms,\
candidate_mean_tpot_ms
GLM-5.2-NVFP4,dummy,4,0,1,111.63,129.96,16.42,8.65,7.41
GLM-5.2-NVFP4,dummy,4,0,8,688.56,791.61,14.97,10.19,8.76
GLM-5.2-NVFP4,dummy,4,0,32,1565.80,1738.79,11.05,17.30,15.51
GLM-5.2-NVFP4,dummy,4,0,256,2244.52,2430.66,8.29,46.57,43.34
GLM-5.2-NVFP4,dummy,4,0,1024,2250.54,2444.41,8.61,48.71,45.32
GLM-5.2-NVFP4,real,4,3,1,262.84,309.54,17.77,,2.94
GLM-5.2-NVFP4,real,4,3,8,979.18,1057.14,7.96,,6.57
GLM-5.2-NVFP4,real,4,3,32,1781.36,1891.51,6.18,,14.32
GLM-5.2-NVFP4,real,4,3,256,2294.24,2485.39,8.33,,37.60
GLM-5.2-NVFP4,real,4,3,1024,2312.33,2496.11,7.95,,39.27
"""
CHANGES = [16.42, 14.97, 11.05, 8.29, 8.61, 17.77, 7.96, 6.18, 8.33, 7.95]
WIGGLES = (1.0, 1.004, 0.997, 1.001)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def pages(request, monkeypatch):
    """Curves take seconds: only the tests that look at a page render it."""
    if "draws" not in request.fixturenames:
        monkeypatch.setattr(comparing, "write_comparison", lambda folder, judgement: folder / "report.html")


@pytest.fixture
def draws():
    """Asks for real pages."""


def launches(path, arm, factor=1.0, *, concurrencies=(1, 16), run_id="run-1", count=4, **changes):
    """Records of `count` launches; `factor`: how much slower."""
    return [
        make_record(
            order=order,
            run_id=run_id,
            launch_id=f"{path}-{order}",
            cell_id=f"cell-{concurrency}",
            arm_id=arm,
            pair=pair,
            slot=(pair % 2) ^ (arm == "c"),
            label=f"{path} tiny_v32 c{concurrency}",
            requested={"path": path, "concurrency": concurrency},
            metrics=metrics_at(concurrency, factor * WIGGLES[pair % 4]),
            checks={},
            **changes,
        )
        for pair in range(count)
        for concurrency in concurrencies
        for order in [2 * pair + (arm == "c")]
    ]


def run_of(folder, name, records, **changes):
    return write_run(
        folder / name,
        [record.model_copy(update={"run_id": name}) for record in records],
        run_id=name,
        **changes,
    )


def verdict_of(folder):
    (found,) = (folder / "results").glob("*/verdict.json")
    return json.loads(found.read_text()), found.parent


def compare(folder, baseline, candidate, *words):
    code = main(["cmd=compare", f"baseline_run={baseline}", f"candidate_run={candidate}", *words])
    return code, *verdict_of(folder)


def test_the_published_table(here, capsys, draws):
    (here / "published.csv").write_text(PUBLISHED)
    assert main(["cmd=import", "file=published.csv"]) == 3
    verdict, folder = verdict_of(here)
    assert (verdict["verdict"], verdict["exit_code"]) == ("INCONCLUSIVE", 3)
    speed = [one for one in verdict["gates"] if one["metric"] == "out_tps"]
    assert [round(one["change_pct"], 2) for one in speed] == CHANGES
    assert all(one["verdict"] == "INCONCLUSIVE" and one["reason"].startswith("single-run") for one in speed)
    tpot = [one["verdict"] for one in verdict["gates"] if one["metric"] == "tpot_mean_ms"]
    assert tpot == ["INCONCLUSIVE"] * 5 + ["NEW"] * 5
    summary = (folder / "summary.md").read_text()
    assert [summary.count(f"| +{change:.2f} % |") for change in CHANGES] == [1] * 10
    page = (folder / "report.html").read_text()
    assert all(f"{change:+.2f}" in page or f"{change:+.3g}" in page for change in CHANGES)
    said = capsys.readouterr().out
    assert "INCONCLUSIVE (exit 3)" in said and str(folder / "report.html") in said
    assert ElementTree.parse(folder / "junit.xml").getroot().find(".//skipped") is not None


def test_one_arm_is_imported_and_compared_with_nothing(here, capsys):
    (here / "a.csv").write_text("concurrency,output_tok_s\n1,10\n2,20\n")
    assert main(["cmd=import", "file=a.csv"]) == 0
    assert "2 cells imported, nothing to compare them with" in capsys.readouterr().out
    assert not list((here / "results").glob("*/verdict.json"))
    assert list((here / "results").glob("*/report.html"))


def test_two_files_are_two_arms(here):
    rows = "".join(f"1,{value}\n" for value in (100, 101, 99, 102))
    (here / "a.csv").write_text("concurrency,output_tok_s\n" + rows)
    (here / "b.csv").write_text("concurrency,output_tok_s\n" + rows.replace(",1", ",0"))
    assert main(["cmd=import", "file=b.csv", "baseline_file=a.csv"]) in (1, 3)
    verdict, _ = verdict_of(here)
    assert verdict["interleaved"] is False and verdict["gates"][0]["n_pairs"] == 4


def test_a_copied_line_is_no_evidence(here, capsys):
    line = "1,100,80\n"
    (here / "a.csv").write_text("concurrency,baseline_output_tok_s,candidate_output_tok_s\n" + 6 * line)
    assert main(["cmd=import", "file=a.csv"]) == 3
    verdict, folder = verdict_of(here)
    (entry,) = verdict["gates"]
    assert entry["n_pairs"] == 1 and entry["reason"].startswith("single-run")
    said = "a.csv: candidate: c1: 5 copies of a launch left out"
    assert any(note.startswith(said) for note in verdict["notes"])
    assert said in (folder / "summary.md").read_text() and said in capsys.readouterr().err


def test_a_column_that_names_the_path_names_the_arm(here, capsys):
    for name, path, speed in (("old", "generic_mrv1", 100), ("new", "dsa_mrv2", 120)):
        (here / f"{name}.csv").write_text(f"path,concurrency,output_tok_s\n{path},1,{speed}\n")
    assert main(["cmd=import", "file=new.csv", "baseline_file=old.csv"]) == 3
    assert "+20.00 %" in capsys.readouterr().out
    mixed = (here / "old.csv").read_text() + "dsa_mrv2,1,120\n"
    (here / "mixed.csv").write_text(mixed)
    assert main(["cmd=import", "file=mixed.csv", "baseline_file=old.csv"]) == 2
    assert "records of 2 arms (paths dsa_mrv2, generic_mrv1)" in capsys.readouterr().err


def test_separate_runs_never_pass_but_can_fail(here, draws):
    base = run_of(here, "base", launches("old", "b"))
    same = run_of(here, "same", launches("new", "c"))
    code, verdict, folder = compare(here, base, same)
    assert code == 3 and "not interleaved" in verdict["reason"] and verdict["tier"]["name"] == "pr"
    assert verdict["counts"]["PASS"] == verdict["counts"]["IMPROVED"] == 0
    assert verdict["baseline"] == {"name": "old", "runs": ["base"], "revisions": []}
    for file in ("verdict.json", "junit.xml", "summary.md", "comparison.json", "report.html"):
        assert (folder / file).is_file()


def test_a_slower_run_fails(here):
    base = run_of(here, "base", launches("old", "b"))
    slow = run_of(here, "slow", launches("new", "c", 1.3))
    code, verdict, _ = compare(here, base, slow)
    assert code == 1 and verdict["counts"]["FAIL"] >= 2


@pytest.mark.parametrize(
    ("changes", "run", "said"),
    [
        ({"metric_def_version": "99"}, {}, f"metric_def_version {METRIC_DEF_VERSION} against 99"),
        ({"workload_version": "99"}, {}, "workload_version"),
        ({"effective": {"kv_dtype": "fp8"}}, {}, "effective kv_dtype bf16 against fp8"),
        (
            {},
            {"environment": {"cpu": "Other CPU", "cores": 2, "gpu": None}},
            "other machine: cpu Example CPU 3000",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(here, changes, run, said):
    base = run_of(here, "base", launches("old", "b"))
    other = run_of(here, "other", launches("new", "c", **changes), **run)
    code, verdict, _ = compare(here, base, other)
    assert code == 3 and verdict["counts"]["NOT_COMPARABLE"] == len(verdict["gates"]) > 0
    assert said in verdict["gates"][0]["reason"]


@pytest.mark.parametrize("arm", ["base", "cand"])
def test_another_schema_is_not_comparable(here, arm):
    folders = {name: run_of(here, name, launches(name, name[0])) for name in ("base", "cand")}
    info = folders[arm] / "run.json"
    info.write_text(info.read_text().replace('"schema_version":"', '"schema_version":"0.', 1))
    code, verdict, _ = compare(here, folders["base"], folders["cand"])
    assert code == 3 and verdict["counts"]["NOT_COMPARABLE"] == 1 and "schema version 0." in verdict["reason"]


def test_a_cell_that_crashed_is_infrastructure(here):
    base = run_of(here, "base", launches("old", "b"))
    dead = [
        make_failed(
            one.order, **one.model_dump(include={"cell_id", "arm_id", "pair", "slot", "label", "launch_id"})
        )
        for one in launches("new", "c")
    ]
    code, verdict, _ = compare(here, base, run_of(here, "dead", dead))
    assert code == 5 and verdict["verdict"] == "ERROR" and verdict["counts"]["MISSING"] == 2


def test_empty_runs_are_incomplete(here):
    code, verdict, folder = compare(here, run_of(here, "base", []), run_of(here, "cand", []))
    assert (code, verdict["verdict"], verdict["examined"]) == (7, "INCOMPLETE", 0)
    assert "Nothing was compared" in (folder / "summary.md").read_text()


def test_judged_again_offline_by_another_tier(here):
    base = run_of(here, "base", launches("old", "b"))
    slow = run_of(here, "slow", launches("new", "c", 1.3))
    _, first, folder = compare(here, base, slow)
    assert main(["cmd=compare", f"run={folder}"]) == 1
    assert json.loads((folder / "verdict.json").read_text()) == first
    assert main(["cmd=compare", f"run={folder}", "tier=smoke"]) == 0
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "NOT_GATED"
    assert main(
        ["cmd=compare", f"run={folder}", "tier=pr", "tier.margins={out_tps: 0.5, tpot_pooled_ms: 0.5}"]
    ) in (1, 3)
    margins = {
        one["metric"]: one["margin_pct"] for one in json.loads((folder / "verdict.json").read_text())["gates"]
    }
    assert margins["out_tps"] == pytest.approx(50)


def test_order_of_records_and_locale_change_no_verdict(here):
    base, cand = launches("old", "b"), launches("new", "c", 1.1)
    _, first, folder = compare(here, run_of(here, "base", base), run_of(here, "cand", cand))
    random.Random(3).shuffle(base)
    random.Random(4).shuffle(cand)
    run_of(here, "base", base)
    run_of(here, "cand", cand)
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("de_DE.UTF-8", "tr_TR.UTF-8", "C.UTF-8", "C"):
            if name in ("C.UTF-8", "C") or _has(name):
                locale.setlocale(locale.LC_ALL, name)
                main(["cmd=compare", f"run={folder}"])
                assert json.loads((folder / "verdict.json").read_text()) == first
    finally:
        locale.setlocale(locale.LC_ALL, before)


def _has(name):
    try:
        locale.setlocale(locale.LC_ALL, name)
    except locale.Error:
        return False
    return True


def test_the_step_summary_of_github_gets_the_summary(here, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "step.md"))
    base = run_of(here, "base", launches("old", "b"))
    _, _, folder = compare(here, base, run_of(here, "cand", launches("new", "c")))
    assert (here / "step.md").read_text() == (folder / "summary.md").read_text() + "\n"


@pytest.mark.parametrize("form", ["vllm", "pytorch_v3", "csv"])
def test_export(here, form):
    run = run_of(here, "base", launches("old", "b", count=2))
    assert main(["cmd=export", f"run={run}", f"format={form}"]) == 0
    files = sorted((run / "export" / form).iterdir())
    assert len(files) == (4 if form == "vllm" else 1)
    if form == "csv":
        assert main(["cmd=import", f"file={files[0]}"]) == 0
    else:
        json.loads(files[0].read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cmd=export", "run=."], "format=NAME, NAME one of: vllm, pytorch_v3, csv"),
        (["cmd=export", "run=.", "format=xml"], "format=NAME, NAME one of: vllm"),
        (["cmd=export", "run=.", "format=csv,vllm"], "format has one value per run"),
        (["cmd=export", "run=.", "format=csv"], "run.json: cannot be read"),
        (["cmd=compare"], "needs baseline_run=DIR and candidate_run=DIR"),
        (
            ["cmd=compare", "baseline_run=nowhere", "candidate_run=nowhere"],
            "baseline_run=nowhere: no such folder",
        ),
        (["cmd=compare", "run=.", "baseline_run=."], "leave baseline_run and candidate_run out"),
        (["cmd=compare", "baseline_run=.", "candidate_run=."], "run.json: cannot be read"),
        (["cmd=compare", "run=."], "comparison.json: cannot be read"),
        (
            ["cmd=compare", "baseline_run=.", "candidate_run=.", "concurrency=4"],
            "concurrency=4: not a key of cmd=compare",
        ),
        (["cmd=compare", "baseline_run=a,b", "candidate_run=."], "one value per run"),
        (
            ["cmd=compare", "baseline_run=.", "candidate_run=.", "tier=pull"],
            "tier=pull: unknown; known: nightly",
        ),
        (["cmd=compare", "run=.", "tier=pr", "tier.pairs.min=0"], "tier.pairs.min=0"),
        (["cmd=compare", "run=.", "tier=pr", "tier.pairs.mim=4"], "unknown key tier.pairs.mim"),
        (["cmd=import"], "cmd=import needs file=F"),
        (["cmd=import", "file=nothing.csv"], "file=nothing.csv: no such file"),
        (["cmd=import", "file=two.csv", "baseline_file=two.csv"], "has two arms of its own"),
        (["cmd=import", "file=notes.txt"], "must end in .csv, .json or .jsonl"),
        (["+path=scripted", "tier=pr"], "a gate needs two arms"),
        (["+path=scripted", "baseline_run=x"], "baseline_run=x: not allowed; allowed: null"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(here, capsys, words, said):
    (here / "two.csv").write_text("c,baseline_output_tok_s,candidate_output_tok_s\n1,2,3\n")
    (here / "notes.txt").write_text("x")
    assert main(words) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert not list((here / "results").glob("*")) if (here / "results").exists() else True


def test_two_paths_in_one_run_must_be_told_apart(here, capsys):
    mixed = run_of(here, "mixed", [*launches("old", "b"), *launches("new", "c")])
    assert main(["cmd=compare", f"baseline_run={mixed}", f"candidate_run={mixed}"]) == 2
    assert "records of 2 arms (paths new, old)" in capsys.readouterr().err
