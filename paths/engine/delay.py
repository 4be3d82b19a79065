"""`debug.step_delay_pct`: makes an engine slower by a known amount, to show what a gate can see."""

from __future__ import annotations

import dataclasses
import time

from paths.api import Counters, Effective, Engine, EngineConfig, Request, StartupReport, StepEvents, UserError

KEY = "step_delay_pct"  # of EngineConfig.debug


def delayed(engine: Engine, config: EngineConfig) -> Engine:
    """`engine` itself, or one whose steps take so many per cent longer. Raises UserError."""
    percent = config.debug.get(KEY, 0)
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 1000:
        raise UserError(f"debug.{KEY}={percent}: not allowed; allowed: a number from 0 to 1000")
    return DelayedEngine(engine, percent / 100) if percent else engine


class DelayedEngine:
    """After each step, and after its tokens were sent, it computes nothing for `share` of the step's time.

    It keeps its core busy, as code that is slower would: wall time and processor time both show it.
    """

    def __init__(self, engine: Engine, share: float) -> None:
        self._engine = engine
        self._share = share
        self._busy_until = 0.0  # as perf_counter counts

    def step(self) -> StepEvents:
        while time.perf_counter() < self._busy_until:
            pass
        began = time.perf_counter()
        events = self._engine.step()
        now = time.perf_counter()
        self._busy_until = now + (now - began) * self._share
        return events

    def warm_up(self) -> StartupReport:
        return self._engine.warm_up()

    def add(self, request: Request) -> None:
        self._engine.add(request)

    def refuse(self, request_id: int, error: str) -> None:
        self._engine.refuse(request_id, error)

    def abort(self, request_id: int) -> None:
        self._engine.abort(request_id)

    def has_work(self) -> bool:
        return self._engine.has_work()

    def counters(self) -> Counters:
        return self._engine.counters()

    def effective(self) -> Effective:
        """The engine's own words, and that it was slowed down on purpose."""
        effective = self._engine.effective()
        said = f"debug.{KEY}={self._share * 100:g}: every step was made slower on purpose"
        return dataclasses.replace(effective, notes=(*effective.notes, said))

    def close(self) -> None:
        self._engine.close()
