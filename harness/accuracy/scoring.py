"""Scores the answers of one running engine: starts lm-eval, keeps every row, adds up what came back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.accuracy.process import ScoringFailed, ScoringProcess
from harness.accuracy.prompts import prompt_rules
from harness.accuracy.questions import QuestionsWriter
from harness.accuracy.score import AccuracyScore, summarize_answers
from harness.accuracy.spec import Job, PreparedPrompts, Stage, stages
from harness.cell import Cell
from harness.client.endpoint import Endpoint, EngineDied
from harness.signals import allowed
from paths.api import Counters, UserError

_KEEP_ROWS = 25  # written at once: a crash costs at most so many
_KEEP_S = 5.0

OnProgress = Callable[[str, float], None]


@dataclass(kw_only=True)
class _Asked:
    """One stage while it goes on."""

    stage: Stage
    started: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: int = 0  # of the rows, those that are in the file
    kept_at: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    before: Counters | None = None
    after: Counters | None = None
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Scored:
    """How the scoring of one cell ended. `died`: the engine did, and serves nobody any more."""

    scores: list[AccuracyScore]
    failure: str | None = None
    died: EngineDied | None = None
    interrupted: bool = False

    @property
    def fault(self) -> str | None:
        """What other than the model kept a score from being; None when there are all."""
        return self.failure or next((one.reason for one in self.scores if one.reason is not None), None)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """Knows the run."""

    writer: QuestionsWriter
    run_id: str
    parent_environment: Mapping[str, str]
    prepared: PreparedPrompts

    def score(
        self,
        endpoint: Endpoint,
        cell: Cell,
        *,
        concurrency: int,
        launch_id: str,
        folder: Path,
        on_progress: OnProgress,
        on_score: Callable[[AccuracyScore], None],
    ) -> Scored:
        """Ask everything that the cell's spec says. Ctrl-C ends it, too, and is told in `Scored`."""
        spec = cell.accuracy
        assert spec is not None
        planned = stages(spec, concurrency)
        job = Job(spec=spec, prompts=prompt_rules(cell.engine), stages=planned, timeout_s=cell.timeout_s)
        ids = {"run_id": self.run_id, "launch_id": launch_id, "cell_id": cell.cell_id, "arm_id": cell.arm_id}
        books = _Books(self, job, ids, on_progress, on_score)
        failure, died, interrupted = None, None, False
        process = ScoringProcess(job, folder=folder, parent_environment=self.parent_environment)
        try:
            with process, allowed():
                books.follow(process.messages(endpoint))
        except EngineDied as error:
            failure, died = f"the engine died: {error.reason}", error
        except (ScoringFailed, UserError) as error:
            failure = str(error)
        except KeyboardInterrupt:
            failure, interrupted = "interrupted", True
        return Scored(
            scores=books.close(planned, failure), failure=failure, died=died, interrupted=interrupted
        )


class _Books:
    """What one scoring process has reported so far."""

    def __init__(
        self,
        scorer: Scorer,
        job: Job,
        ids: dict[str, str],
        on_progress: OnProgress,
        on_score: Callable[[AccuracyScore], None],
    ) -> None:
        self._scorer, self._spec, self._ids = scorer, job.spec, ids
        self._on_progress, self._on_score = on_progress, on_score
        self._asked: list[_Asked] = []
        self._prepared = {each.task: each for each in scorer.prepared.get((job.spec, job.prompts), ())}

    def follow(self, messages: Iterator[tuple[Any, ...]]) -> None:
        for verb, stage, *parts in messages:
            if verb == "stage":
                self._asked.append(_Asked(stage=stage))
                self._report(self._asked[-1])
            elif verb == "question":
                self._enter(self._asked[-1], parts[0])
            elif verb == "stage_done":
                self._finish(self._asked[-1], *parts)
            else:
                raise ScoringFailed(f"unknown message {verb!r} from its process")

    def close(self, planned: Sequence[Stage], failure: str | None) -> list[AccuracyScore]:
        """Keep what is left and add up every stage that was planned."""
        for asked in self._asked:
            self._keep(asked)
        begun = {asked.stage for asked in self._asked}
        never = [_Asked(stage=stage) for stage in planned if stage not in begun]
        return [self._score(asked, failure) for asked in (*self._asked, *never)]

    def _enter(self, asked: _Asked, row: Mapping[str, Any]) -> None:
        stage = asked.stage
        fixed = {"part": stage.part, "concurrency": stage.concurrency, "shots": self._spec.shots}
        asked.rows.append(fixed | dict(row))
        self._report(asked)
        if len(asked.rows) - asked.kept >= _KEEP_ROWS or time.monotonic() - asked.kept_at > _KEEP_S:
            self._keep(asked)

    def _finish(self, asked: _Asked, _scores: object, before: Counters, after: Counters) -> None:
        asked.before, asked.after, asked.done = before, after, True
        asked.seconds = time.monotonic() - asked.started
        self._keep(asked)
        self._on_score(self._score(asked, None))

    def _keep(self, asked: _Asked) -> None:
        """Rows are in the run folder long before the scoring ends."""
        self._scorer.writer.add(asked.rows[asked.kept :], **self._ids)
        asked.kept, asked.kept_at = len(asked.rows), time.monotonic()

    def _score(self, asked: _Asked, failure: str | None) -> AccuracyScore:
        return summarize_answers(
            asked.stage,
            asked.rows,
            shots=self._spec.shots,
            prepared=self._prepared.get(asked.stage.task),
            seconds=asked.seconds,
            before=asked.before,
            after=asked.after,
            ended=None if asked.done else failure or "it was not asked to the end",
        )

    def _report(self, asked: _Asked) -> None:
        stage, prepared = asked.stage, self._prepared.get(asked.stage.task)
        total = prepared.questions if prepared else stage.limit
        if stage.limit is not None and total is not None:
            total = min(total, stage.limit)
        right = sum(bool(row["numeric_correct"]) for row in asked.rows)
        done = f"{len(asked.rows)}/{total or '?'} answered, {right} right"
        self._on_progress(
            f"{stage.task} c{stage.concurrency}: {done}", len(asked.rows) / total if total else 0.0
        )
