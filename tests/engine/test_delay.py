"""debug.step_delay_pct: a known slow-down of the candidate, and nothing else."""

import itertools

import pytest

from paths.api import EngineConfig, ModelSource, UserError
from paths.engine import delay
from paths.scripted import ScriptedPath


def config(**debug):
    model = ModelSource(name="none", hf_config={}, checkpoint="dummy")
    return EngineConfig(path="scripted", impl="paths.scripted:ScriptedPath", model=model, debug=debug)


class Clock:
    """Advances by a millisecond whenever it is read."""

    def __init__(self):
        self.reads = itertools.count()
        self.last = 0.0

    def perf_counter(self):
        self.last = next(self.reads) / 1000
        return self.last


class Step:
    """Does nothing; by this clock a step takes one tick."""

    def step(self):
        return "events"


@pytest.mark.parametrize(("share", "now"), [(10.5, 16), (4.5, 10), (0.5, 8)])
def test_what_a_step_owes_is_paid_before_the_next_one(share, now, monkeypatch):
    """Not before its tokens are sent: they would look as if the client had read them late."""
    clock = Clock()
    monkeypatch.setattr(delay.time, "perf_counter", clock.perf_counter)
    engine = delay.DelayedEngine(Step(), share)
    assert engine.step() == "events"
    assert [next(clock.reads), next(clock.reads)] == [3, 4]  # it ended at 2, nothing was owed
    assert engine.step() == "events"
    assert next(clock.reads) == now


def test_time_without_work_pays_as_well(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(delay.time, "perf_counter", clock.perf_counter)
    engine = delay.DelayedEngine(Step(), 10.0)
    engine.step()
    clock.reads = itertools.count(50)
    engine.step()
    assert next(clock.reads) == 53


def test_without_the_setting_the_engine_is_its_own():
    engine = ScriptedPath().start(config())
    assert delay.delayed(engine, config()) is engine
    assert delay.delayed(engine, config(step_delay_pct=0.0, checks=True)) is engine


def test_a_delayed_engine_says_so_and_still_serves():
    asked = config(step_delay_pct=30)
    engine = delay.delayed(ScriptedPath().start(asked), asked)
    assert any("debug.step_delay_pct=30" in note for note in engine.effective().notes)
    assert not engine.has_work() and engine.counters().output_tokens == 0
    engine.warm_up()
    engine.abort(3)
    engine.close()


@pytest.mark.parametrize("percent", [-1, 1001, "30", True, None])
def test_a_senseless_delay_is_refused(percent):
    with pytest.raises(UserError, match="step_delay_pct"):
        delay.delayed(ScriptedPath().start(config()), config(step_delay_pct=percent))
