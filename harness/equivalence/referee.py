"""Compares the arms of a run as their engines come up: asks the reference twice, every other arm once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.client.endpoint import Endpoint, EngineDied
from harness.equivalence.arms import Arm
from harness.equivalence.asking import ALTERNATIVES, Asker, NotAnswered
from harness.equivalence.compare import NEAR_TIE, Answers, compare
from harness.equivalence.score import Equivalence, Level
from harness.workload.source import Prompt, PromptSource


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What an arm's record gets, and how its engine is afterwards."""

    equivalence: Equivalence
    died: EngineDied | None = None


@dataclass
class Referee:
    """Of one run. `arms`: launch_id → arm; `source`: the prompts that all arms of a group are given."""

    arms: Mapping[str, Arm]
    prompts: int
    source: Callable[[Arm], PromptSource]
    _first: dict[str, Sequence[Answers]] = field(default_factory=dict)  # reference launch → its first pass
    _asked: dict[str, list[Prompt]] = field(default_factory=dict)
    _missing: dict[str, str] = field(default_factory=dict)  # reference launch → why it has no answers

    def judge(self, endpoint: Endpoint, arm: Arm, on_progress: Callable[[str, float], None]) -> Judged:
        """Ask and compare; whatever the engine does wrong is a reason."""
        try:
            return Judged(equivalence=self._result(arm, levels=self._levels(endpoint, arm, on_progress)))
        except NotAnswered as refused:
            return Judged(equivalence=self._without(arm, str(refused)))
        except EngineDied as died:
            return Judged(equivalence=self._without(arm, f"the engine died: {died.reason}"), died=died)

    def _without(self, arm: Arm, reason: str) -> Equivalence:
        if arm.is_reference:
            self._missing[arm.launch.launch_id] = reason
        return self._result(arm, reason=reason)

    def _result(self, arm: Arm, *, levels: Sequence[Level] = (), reason: str | None = None) -> Equivalence:
        return Equivalence(
            arm=arm.name,
            reference=self.arms[arm.reference.launch_id].name,
            against="itself" if arm.is_reference else "reference",
            differs_in=arm.differs_in,
            levels=list(levels),
            reason=reason,
        )

    def _levels(self, endpoint: Endpoint, arm: Arm, on_progress: Callable[[str, float], None]) -> list[Level]:
        """Raises NotAnswered and EngineDied."""
        first = self._first.get(arm.reference.launch_id)
        if first is None and not arm.is_reference:
            why = self._missing.get(arm.reference.launch_id, "it was not asked")
            raise NotAnswered(f"the reference has no answers: {why}")
        asker = self._asker(endpoint, arm, on_progress)
        if first is None:
            first = [asker.answers(concurrency, None) for concurrency in arm.concurrencies]
            self._first[arm.launch.launch_id] = first
        near_tie = NEAR_TIE[arm.cell.engine.dtype]
        return [
            compare(before, asker.answers(before.concurrency, before.tokens), near_tie=near_tie)
            for before in first
        ]

    def _asker(self, endpoint: Endpoint, arm: Arm, on_progress: Callable[[str, float], None]) -> Asker:
        source = self.source(arm)
        group = arm.reference.launch_id
        if group not in self._asked:
            self._asked[group] = source.next(max(self.prompts, *arm.concurrencies))
        drawn = self._asked[group]
        once = {prompt.hash: prompt for prompt in drawn[: self.prompts]}  # a small data set begins again
        return Asker(
            endpoint=endpoint,
            prompts=list(once.values()),
            others=drawn[self.prompts :],
            exact_lengths=source.exact_lengths,
            timeout_s=arm.cell.timeout_s,
            alternatives=min(ALTERNATIVES, arm.cell.model.vocab_size),
            on_progress=lambda fraction: on_progress("equivalence", fraction),
        )
