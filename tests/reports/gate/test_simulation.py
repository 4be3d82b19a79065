"""The gate's error rates, in short; benchmarks/gate_simulation.py has them in full."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.reports.compare.arms import PR

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gate_simulation.py"


@pytest.fixture(scope="module")
def simulation():
    specification = importlib.util.spec_from_file_location("gate_simulation", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    # dataclasses look their module up by name
    import sys

    sys.modules["gate_simulation"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["gate_simulation"]


def named(simulation, start):
    return next(one for one in simulation.SCENARIOS if one.name.startswith(start))


def test_quiet_launches(simulation):
    quiet = named(simulation, "1 % pair")
    assert simulation.simulate(PR, quiet, 0.0, 40)["FAIL"] == 0
    assert simulation.simulate(PR, quiet, float(np.log(1.05)), 40)["FAIL"] == 40


def test_a_slot_effect_and_a_drift_are_no_loss(simulation):
    for start in ("1 %, slot", "1 %, drift"):
        assert simulation.simulate(PR, named(simulation, start), 0.0, 30)["FAIL"] == 0


def test_pairs_have_the_sd_that_the_scenario_says(simulation):
    for start, sd in (("1 % pair", 0.01), ("5 %", 0.05), ("2 %, autocorrelation", 0.02)):
        noise = simulation.losses(named(simulation, start), np.random.default_rng(1), 400, 12)
        pairs = noise[:, 1::2] - noise[:, 0::2]
        assert pairs.std() == pytest.approx(sd, rel=0.05)


def test_the_order_of_pairs_is_abba(simulation):
    base, cand = simulation.pairs_of(np.arange(8.0)[:, None, None], 0.0)
    assert base.ravel().tolist() == [0, 3, 4, 7] and cand.ravel().tolist() == [1, 2, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["5 %", "2 %, autocorrelation", "2 %, 2 %"])
def test_false_alarms_are_rare(simulation, start):
    assert simulation.simulate(PR, named(simulation, start), 0.0, 1000)["FAIL"] <= 50
