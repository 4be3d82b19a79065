"""What can be known to be wrong with a scoring before an engine starts, and which cell carries it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from harness.accuracy.process import prepare, require_lm_eval
from harness.accuracy.prompts import prompt_rules
from harness.accuracy.spec import (
    DEFAULT_CONCURRENCY,
    TASKS,
    AccuracySpec,
    Job,
    Prepared,
    PreparedPrompts,
    PromptRules,
    highest,
)
from harness.cell import Cell
from harness.overrides import parse_override
from harness.plan import Launch
from paths.api import EngineConfig, UserError
from paths.kernels.cache_bytes import PAGE_SIZE

_OF_SCORING = ("shots", "limit", "gsm8k")


def scored_concurrency(cells: Sequence[Cell], cell: Cell) -> int | None:
    """Concurrency at which the answers of a launch are scored after the load of `cell`; None: not there.

    Of the cells with the same spec it is the one with the highest concurrency.
    """
    if cell.accuracy is None:
        return None
    alike = [other for other in cells if other.accuracy == cell.accuracy]
    chosen = alike[highest(other.config.concurrency for other in alike)]
    if chosen.cell_id != cell.cell_id:
        return None
    return chosen.config.concurrency or min(DEFAULT_CONCURRENCY, chosen.engine.max_num_seqs)


def check_accuracy(launches: Sequence[Launch]) -> PreparedPrompts:
    """Every prompt is built once, here, and must fit. Raises UserError in one line."""
    cells = [cell for launch in launches for cell in launch.cells]
    if all(cell.accuracy is None for cell in cells):
        _refuse_idle_keys(word for cell in cells for word in cell.overrides)
    found: dict[tuple[AccuracySpec, PromptRules], list[Prepared]] = {}
    checked: set[tuple[AccuracySpec, str]] = set()
    for cell in cells:
        spec = cell.accuracy
        if spec is None or (spec, cell.engine.identity()) in checked:
            continue
        checked.add((spec, cell.engine.identity()))
        _refuse_forced_drafts(cell.engine)
        rules = prompt_rules(cell.engine)
        if (spec, rules) not in found:
            require_lm_eval()
            spec.check_files()
            job = Job(spec=spec, prompts=rules, stages=(), timeout_s=cell.timeout_s)
            found[spec, rules] = prepare(job, os.environ)
        for prepared in found[spec, rules]:
            _check_fit(prepared, spec, cell.engine)
    return found


def _refuse_idle_keys(words: Iterable[str]) -> None:
    """A key that would do nothing is a mistake: whoever sets it believes that answers are scored."""
    for word in words:
        override = parse_override(word)
        idle = str(override.key_or_group).split(".")[0] in _OF_SCORING
        if idle and override.value() is not None:
            raise UserError(
                f"{word}: no accuracy is scored, so it would do nothing; add accuracy=TASK, TASK one of:"
                f" {', '.join(TASKS)}, or leave it out"
            )


def _refuse_forced_drafts(engine: EngineConfig) -> None:
    if engine.mtp_forced_al is not None:
        raise UserError(
            f"accuracy with mtp_forced_al={engine.mtp_forced_al:g}: forced acceptance emits tokens that the"
            " model did not choose; set mtp_mode=real, or leave accuracy out"
        )


def _check_fit(prepared: Prepared, spec: AccuracySpec, engine: EngineConfig) -> None:
    """Longest prompt and longest answer together: an answer that is cut is no wrong answer."""
    needed = prepared.longest_prompt + prepared.max_gen_toks
    asked = (
        f"accuracy={prepared.task} with shots={spec.shots}: the longest prompt has {prepared.longest_prompt}"
        f" tokens and its answer may have {prepared.max_gen_toks}, together {needed},"
    )
    if needed > engine.max_model_len:
        raise UserError(
            f"{asked} but max_model_len is {engine.max_model_len}; lower shots, or raise"
            " engine.max_model_len (up to the model's limit)"
        )
    capacity = engine.kv_pages * PAGE_SIZE
    if needed > capacity:
        raise UserError(
            f"{asked} but engine.kv_pages={engine.kv_pages} holds {capacity}; raise engine.kv_pages"
        )
