"""Faults of drafting leave answers right: acceptance falls, or the self-check of the counts fails."""

from __future__ import annotations

import pytest

from tests.command_line import info_of, records_of
from tests.faults.gains import spread_gains
from tests.faults.runs import run, write_prompts


def test_a_bonus_token_that_is_told_as_accepted_is_invalid(tmp_path):
    load = ("mtp=3", "concurrency=2", "num_prompts=4", "isl=4", "osl=12")
    assert run("+path=dsa_mrv2,bonus_token", *load, cwd=tmp_path) == info_of(tmp_path).exit_code == 6
    healthy, boastful = records_of(tmp_path)
    assert healthy.state == "OK" and healthy.checks["bonus_token"].ok is True
    assert boastful.state == "INVALID" and boastful.checks["bonus_token"].ok is False
    assert "did not emit accepted + 1 tokens" in boastful.reason


@pytest.fixture(scope="module")
def measure(tmp_path_factory):
    """Interval of a metric by path and metric, of drafts behind the same problems."""

    def measured(name, paths, *words):
        folder = tmp_path_factory.mktemp(name)
        load = ("mtp=3", "concurrency=32", "num_prompts=400", "osl=120")
        load = (*load, *write_prompts(folder / "prompts.jsonl", 460, shots=1))
        run(f"+path={paths}", *load, *words, cwd=folder)
        metrics = {record.requested["path"]: record.metrics for record in records_of(folder)}

        def interval(path, metric):
            found = metrics[path][metric]
            assert found.ci95 is not None, found.reason
            return found.ci95

        return interval

    return measured


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drafts_in_the_wrong_place_are_accepted_less_often(measure):
    interval = measure("position", "dsa_mrv2,dsa_mrv2_eager,mtp_position")
    for metric in ("al", "c_0", "c_1", "c_2"):
        one, other = (interval(path, metric) for path in ("dsa_mrv2", "dsa_mrv2_eager"))
        assert one[0] <= other[1] and other[0] <= one[1], f"{metric} of two healthy arms"
    assert interval("mtp_position", "al")[1] < interval("dsa_mrv2", "al")[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drafts_from_a_state_that_is_normed_twice_are_accepted_less_often(measure, tmp_path):
    spread_gains(tmp_path / "model")
    interval = measure("norm", "dsa_mrv2,mtp_norm", f"checkpoint={tmp_path / 'model'}")
    assert interval("mtp_norm", "al")[1] < interval("dsa_mrv2", "al")[0]
    assert interval("dsa_mrv2", "c_0")[0] > 0.7, "spread gains alone leave drafts as good as they were"
