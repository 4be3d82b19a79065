"""An indexer that selects the wrong keys costs right answers, and the gate on accuracy sees it."""

from __future__ import annotations

import pytest

from tests.faults.runs import against, verdicts

QUESTIONS = 80
ASKED = ("accuracy=arith_gsm", f"limit={QUESTIONS}", "concurrency=64", "num_prompts=64", "isl=8", "osl=4")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("fault", ["indexer_rope", "first_keys"])
def test_wrong_keys_cost_fifteen_points(fault, tmp_path):
    gates = against("dsa_mrv2", fault, *ASKED, cwd=tmp_path / fault)
    assert verdicts(gates, "accuracy") == {"FAIL"}
    scores = [gate for gate in gates if gate["metric"] == "accuracy"]
    assert len(scores) == 2 and {gate["n_pairs"] for gate in scores} == {QUESTIONS}
    assert all(gate["loss_pct"] >= 15 for gate in scores), scores
    assert all(gate["baseline"] >= 0.7 for gate in scores), "a healthy path answers"


def test_the_right_keys_cost_nothing(tmp_path):
    gates = against("dsa_mrv2", "dsa_mrv2_eager", *ASKED, cwd=tmp_path / "healthy")
    assert "FAIL" not in verdicts(gates, "accuracy")
    assert all(abs(gate["loss_pct"]) < 5 for gate in gates if gate["metric"] == "accuracy")
