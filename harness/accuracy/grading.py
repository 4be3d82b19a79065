"""One answer into one row: lm-eval's filters, ours, and what became of it. For the scoring process only."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from harness.accuracy.model import answer_text
from harness.accuracy.numeric import RUN_ON, read_answer, read_target
from harness.accuracy.prompts import PromptEncoder, ids_hash
from harness.client.answers import Answer
from paths.api import FinishReason, Request

STRICT, FLEXIBLE = "strict-match", "flexible-extract"
METRIC = "exact_match"


def question_row(
    task: ConfigurableTask, instance: Instance, request: Request, answer: Answer, encoder: PromptEncoder
) -> dict[str, Any]:
    """The columns of `harness.accuracy.questions` that are about the question itself."""
    text = answer_text(answer, request.params.stop, encoder)
    target = str(task.doc_to_target(instance.doc))
    truncated = answer.finish is FinishReason.LENGTH
    reading = read_answer(text, truncated=truncated)
    expected = read_target(target)
    right = reading.value is not None and reading.value == expected
    failed = answer.error is not None
    strict, flexible = (_filtered(task, instance, text, name) for name in (STRICT, FLEXIBLE))
    return {
        "task": task.config.task,
        "doc_id": int(instance.doc_id),
        "doc_hash": hashlib.sha256(str(instance.doc["question"]).encode()).hexdigest()[:16],
        "prompt_hash": ids_hash([request.prompt_ids]),
        "prompt_tokens": len(request.prompt_ids),
        "target": target,
        "target_number": None if expected is None else str(expected),
        "answer": text,
        "strict_parsed": strict[0],
        "flexible_parsed": flexible[0],
        "numeric_parsed": reading.text,
        "strict_correct": None if failed else strict[1],
        "flexible_correct": None if failed else flexible[1],
        "numeric_correct": None if failed else right,
        "outcome": "error" if failed else "correct" if right else reading.why_none or "wrong",
        "truncated": truncated,
        "unparsable": not failed and reading.value is None and not truncated,
        "several_markers": reading.markers > 1,
        "run_on": reading.run_on or RUN_ON in encoder.decode(answer.token_ids),
        "generated_tokens": len(answer.token_ids),
        "verifications": answer.verifications,
        "drafted": None if answer.verifications is None else answer.drafted,
        "accepted": None if answer.verifications is None else answer.accepted,
        "first_accepted": None if answer.verifications is None else answer.first_accepted,
        "finish_reason": answer.finish.word,
        "error": answer.error,
    }


def _filtered(task: ConfigurableTask, instance: Instance, text: str, name: str) -> tuple[str, bool]:
    """What lm-eval's filter extracts from one answer, and what its metric says to that."""
    alone = dataclasses.replace(instance, resps=[text], filtered_resps={})
    (ensemble,) = (each for each in task._filters if each.name == name)
    ensemble.apply([alone])
    extracted = alone.filtered_resps[name]
    score = task.process_results(instance.doc, [extracted])[METRIC]
    return str(extracted), bool(score)
