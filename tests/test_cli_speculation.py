"""Drafts and equivalence from the command line to the page."""

from pathlib import Path

import pytest

from harness.requests_table import read_requests
from tests.command_line import harness, info_of, only_run, records_of
from tests.reports.conftest import parse_page

FAULTS = ("--config-dir", str(Path(__file__).parent / "fixtures" / "drafting_faults"))
QUICK = ("measure_s=0.3", "warmup_s=0", "isl=4", "osl=16")
GAPS = ("path.options.first_ms=5", "path.options.gap_ms=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two arms that differ in mtp, at two loads, compared."""
    folder = tmp_path_factory.mktemp("speculation")
    words = (
        "mtp=0,3",
        "concurrency=1,4",
        "path.options.accepted=[3,1,0]",
        "equivalence=true",
        "equivalence_prompts=4",
    )
    done = harness("+path=scripted", *QUICK, *GAPS, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_records_hold_acceptance_and_equivalence(run):
    folder, _ = run
    plain, drafting = records_of(folder)[:2], records_of(folder)[2:]
    assert all("al" not in record.metrics and record.equivalence is None for record in plain[:1])
    for record in drafting:
        assert record.effective["mtp"] == record.requested["mtp"] == 3
        assert [record.checks[name].ok for name in ("drafting", "acceptance", "bonus_token")] == [True] * 3
        assert 1.9 < record.metrics["al"].value < 3.1
        assert record.metrics["u_0"].ci95 is not None and "u_3" not in record.metrics
        assert sum(record.counters["accepted_at"]) == record.counters["accepted_tokens"] > 0
    itself, other = plain[1].equivalence, drafting[1].equivalence
    assert (itself.against, other.against, other.differs_in) == ("itself", "reference", ["mtp"])
    assert [level.concurrency for level in other.levels] == [1, 4]
    assert all(level.greedy.identical == 4 and level.forced.max_kl == 0 for level in other.levels)


def test_requests_hold_their_drafts(run):
    rows = read_requests(only_run(run[0])).to_pylist()
    drafted = [row for row in rows if row["drafted"] is not None]
    assert 0 < len(drafted) < len(rows)
    assert all(row["drafted"] == 3 * row["verifications"] >= row["accepted"] for row in drafted)
    assert any(row["accepted"] for row in drafted)


def test_the_page_and_the_table_show_both(run):
    folder, done = run
    page = parse_page((only_run(folder) / "report.html").read_text())
    assert "the drafts pay for their verification" in page.by_id("speculation").text
    assert "differs in mtp" in page.by_id("equivalence").text
    assert "AL ↑" in done.stdout and "mtp" in done.stdout


def test_each_fault_of_drafting_has_its_signal(tmp_path):
    words = ("mtp=3", "path.options.fault=none,off,off_and_said,bonus_counted")
    done = harness("+path=drafting", *QUICK, *words, *FAULTS, cwd=tmp_path)
    sound, off, said, bonus = records_of(tmp_path)
    assert done.returncode == info_of(tmp_path).exit_code == 6
    assert sound.state == "OK"
    assert off.state == "INVALID" and off.reason.startswith("drafting: mtp=3 was asked for, but no draft")
    assert said.state == "PATH_MISMATCH" and said.reason == "mtp 0, requested 3"
    assert bonus.state == "INVALID" and "did not emit accepted + 1 tokens" in bonus.reason
    assert bonus.checks["bonus_token"].ok is False


def test_forced_acceptance_is_acknowledged_and_labelled(tmp_path):
    words = ("mtp=3", "mtp_mode=forced", "mtp_forced_al=2.5", "concurrency=8")
    done = harness(
        "+path=drafting", *QUICK, *words, "path.options.fault=none,not_forced", *FAULTS, cwd=tmp_path
    )
    sound, silent = records_of(tmp_path)
    assert sound.state == "OK" and sound.checks["forced_al"].ok
    assert sound.metrics["al"].value == pytest.approx(2.5, abs=0.3)
    assert silent.state == "PATH_MISMATCH" and "mtp_forced_al None, requested 2.5" in silent.reason
    page = (only_run(tmp_path) / "report.html").read_text()
    assert "Forced acceptance" in page and "3 forced al=2.5" in page
    assert "forced acceptance: drafts are accepted by chance" in done.stdout
    assert all("forced al=2.5" in record.label for record in (sound, silent))


@pytest.mark.parametrize(
    ("words", "said"),
    [(["equivalence=true"], "no two arms answer the same prompts"),
     (["mtp=2", "model.hf_config.num_nextn_predict_layers=0"], "has no MTP layer"),
     (["mtp=2", "mtp_mode=forced"], "needs a number from 1 to 3")],
)  # fmt: skip
def test_what_means_nothing_is_one_line_and_leaves_nothing(tmp_path, words, said):
    done = harness("+path=scripted", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
