"""Wrong keys in a cache show in answers to the same prompts: other log-probs, or other tokens with drafts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.runs import FIXTURES, against, verdicts, write_prompts
from tests.runners import test_speculation

LOAD = ("concurrency=4", "num_prompts=4", "osl=48", "equivalence=true")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kv_scale_off_by_two_is_another_distribution(tmp_path):
    asked = (*LOAD, "kv_dtype=fp8", *write_prompts(tmp_path / "prompts.jsonl", 200, shots=2))
    gates = against("dsa_mrv2", "kv_scale", *asked, cwd=tmp_path / "faulty")
    assert verdicts(gates, "mean_kl") == verdicts(gates, "clear_agreement") == {"FAIL"}
    gates = against("dsa_mrv2", "dsa_mrv2_eager", *asked, cwd=tmp_path / "healthy")
    assert verdicts(gates, "mean_kl") == verdicts(gates, "clear_agreement") == {"PASS"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_keys_of_rejected_drafts_that_stay_are_other_answers_than_without_drafts(tmp_path):
    """One path against itself: only drafts differ, and every greedy answer must be the same."""
    asked = (*LOAD, "mtp=3", "baseline_set={mtp: 0}", "dtype=float32")
    asked = (*asked, *write_prompts(tmp_path / "prompts.jsonl", 200, shots=2))
    gates = against("stale_rows", "stale_rows", *asked, cwd=tmp_path / "faulty")
    assert verdicts(gates, "identical_answers") == {"FAIL"}
    gates = against("dsa_mrv2", "dsa_mrv2", *asked, cwd=tmp_path / "healthy")
    assert verdicts(gates, "identical_answers") == {"PASS"}


def test_greedy_equality_of_engines_tells_stale_rows(monkeypatch):
    """The comparison of `tests/runners`, which the healthy engine passes there, on a small random model."""
    monkeypatch.syspath_prepend(FIXTURES)
    from planted import StaleRowsPath

    make = test_speculation.make_engine

    def planted(*choice: Any, **capacities: Any) -> Any:
        engine = make(*choice, **capacities)
        if capacities.get("mtp"):
            StaleRowsPath().plant(engine)
        return engine

    monkeypatch.setattr(test_speculation, "make_engine", planted)
    with pytest.raises(AssertionError, match="parts at"):
        test_speculation.compare("dsa", arms=["dsa V2"], mtps=(3,), count=6, seed=0)
