"""The process that runs lm-eval. It asks the engine through the harness, which owns it.

    python -P -m harness.accuracy.child --fd 5       (started by harness.accuracy.process, never by hand)

To the harness it speaks as to a worker (add, abort, counters, effective), so that the harness's own client
drives the engine here, too; and besides: prepared, stage, question, stage_done, done, or at an early end one
of user_error and fatal.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import traceback
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate

from harness.accuracy.grading import FLEXIBLE, METRIC, STRICT, question_row
from harness.accuracy.model import MAX_GEN_TOKS, EndpointLM
from harness.accuracy.prompts import PromptEncoder, ids_hash
from harness.accuracy.spec import AccuracySpec, Job, Prepared, Stage
from harness.accuracy.tasks import make_task, task_version
from harness.client.answers import Answer
from harness.client.endpoint import EngineDied
from harness.client.frames import FrameSocket
from harness.client.pipe import PipeEndpoint
from paths.api import Request, StartupReport, UserError
from paths.lifeline import tie_to_peer

EXIT_USER_ERROR = 2
EXIT_FATAL = 3
_START_S = 60.0
_NOTHING = StartupReport(
    load_s=0.0, compile_s=0.0, capture_s=0.0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
)


class _HarnessGone(Exception):
    """The connection was closed before a job arrived."""


class _Peer:
    """The harness at the other end."""

    def __init__(self, frames: FrameSocket, timeout_s: float = _START_S) -> None:
        self.frames = frames
        self.timeout_s = timeout_s

    def job(self) -> Job:
        for _, message in self.frames.receive(self.timeout_s):
            assert message[0] == "job" and isinstance(message[1], Job)
            self.timeout_s = message[1].timeout_s
            return message[1]
        raise _HarnessGone

    def say(self, *message: object) -> None:
        self.frames.send(message, self.timeout_s)

    def endpoint(self) -> PipeEndpoint:
        """The engine, as the harness passes it on."""
        return PipeEndpoint(
            self.frames,
            startup=_NOTHING,
            timeout_s=self.timeout_s,
            explain_end=lambda: EngineDied("crash", "the harness is gone"),
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="harness.accuracy.child")
    parser.add_argument("--fd", type=int, required=True)
    fd = parser.parse_args().fd
    tie_to_peer(fd)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its hints are about its own command line
    peer = _Peer(FrameSocket(socket.socket(fileno=fd)))
    try:
        _work(peer, peer.job())
        peer.say("done")
    except _HarnessGone:
        return 0
    except UserError as error:
        peer.say("user_error", str(error))
        return EXIT_USER_ERROR
    except Exception as error:  # noqa: BLE001 - the process boundary: lm-eval's faults become one line
        traceback.print_exc()
        peer.say("fatal", f"{type(error).__name__}: {error}")
        return EXIT_FATAL
    return 0


def _work(peer: _Peer, job: Job) -> None:
    encoder = PromptEncoder(job.prompts)
    if not job.stages:
        for name in job.spec.tasks:
            peer.say("prepared", _prepare(name, job.spec, encoder))
        return
    endpoint = peer.endpoint()
    for stage in job.stages:
        peer.say("stage", stage)
        before = endpoint.counters()
        results = _score(peer, endpoint, encoder, job.spec, stage)
        peer.say("stage_done", stage, results, before, endpoint.counters())


def _prepare(name: str, spec: AccuracySpec, encoder: PromptEncoder) -> Prepared:
    """Build every prompt as the scoring will, and say how they are."""
    task = make_task(name, spec)
    limit = None if spec.limit is None else min(spec.limit, len(task.eval_docs))
    task.build_all_requests(limit=limit)
    prompts = [encoder.encode(instance.args[0]) for instance in task.instances]
    return Prepared(
        task=name,
        questions=len(prompts),
        longest_prompt=max(map(len, prompts)),
        max_gen_toks=int(task.config.generation_kwargs.get("max_gen_toks", MAX_GEN_TOKS)),
        prompts_hash=ids_hash(prompts),
        version=task_version(task),
    )


def _score(
    peer: _Peer, endpoint: PipeEndpoint, encoder: PromptEncoder, spec: AccuracySpec, stage: Stage
) -> dict[str, float]:
    """Run lm-eval on one stage, sending each question as it is answered; returns lm-eval's own scores."""
    task = make_task(stage.task, spec)
    rows: list[dict[str, Any]] = []

    def report(instance: Instance, request: Request, answer: Answer) -> None:
        rows.append(question_row(task, instance, request, answer, encoder))
        peer.say("question", stage, rows[-1])

    model = EndpointLM(
        endpoint, encoder, concurrency=stage.concurrency, timeout_s=peer.timeout_s, on_answer=report
    )
    evaluated = evaluate(
        lm=model,
        task_dict={"tasks": {stage.task: task}, "groups": {}, "group_map": {}},
        limit=stage.limit,
        bootstrap_iters=0,
        log_samples=False,
    )
    found = evaluated["results"][stage.task]
    prefix = f"{METRIC},"
    scores = {key.removeprefix(prefix): float(found[key]) for key in found if key.startswith(prefix)}
    check_sums(scores, rows)
    return scores


def check_sums(scores: dict[str, float], rows: list[dict[str, Any]]) -> None:
    """Our rows must add up to what lm-eval reports, or one of the two is wrong. Raises ValueError.

    A failed request is an empty answer to lm-eval, and right in no row.
    """
    for name, column in ((STRICT, "strict_correct"), (FLEXIBLE, "flexible_correct")):
        ours = sum(bool(row[column]) for row in rows) / len(rows)
        if abs(ours - scores[name]) > 1e-9:
            raise ValueError(f"lm-eval's {name} is {scores[name]}, the questions add up to {ours}")


if __name__ == "__main__":
    sys.exit(main())
