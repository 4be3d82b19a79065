"""report.html of a comparison, rendered from a judgement and the records that it stands on.

write_comparison(folder, judge_folder(folder))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.records import write_text_atomically
from reports import tables
from reports.attribution_section import attribution_section
from reports.compare.finding import Comparison
from reports.gate.banner import banner
from reports.gate.run_gate import Judgement
from reports.machine import machine_sentence
from reports.templating import script_hash, templates
from reports.verdict_page.cells import cell_pages
from reports.verdict_page.correctness import correctness
from reports.verdict_page.curves import draw_curves
from reports.verdict_page.differences import differences
from reports.verdict_page.drafts import drafts
from reports.verdict_page.forest import forest
from reports.verdict_page.inputs import Compared, load_compared, whole_run
from reports.verdict_page.lights import lights
from reports.verdict_page.matrix import decision_matrix
from reports.verdict_page.provenance import provenance
from reports.verdict_page.sketch import HEIGHT, WIDTH
from reports.verdict_page.switch_cost import switch_cost
from reports.verdict_page.words import RUN_SYMBOL


def write_comparison(folder: Path, judgement: Judgement) -> Path:
    """Render `folder`/report.html and return its path. Raises RecordError."""
    path = folder / "report.html"
    write_text_atomically(path, render_comparison(load_compared(folder, judgement)))
    return path


def render_comparison(data: Compared) -> str:
    """The page as text. Everything that comes from a record is escaped, in one pass."""
    template = templates().get_template("comparison.html")
    return template.render(comparison_context(data), script_hash=script_hash())


def comparison_context(data: Compared) -> dict[str, Any]:
    """Everything that the template reads, by name."""
    judgement, verdict = data.judgement, data.judgement.verdict
    matrix = decision_matrix(judgement.comparison)
    names = (verdict.baseline.name, verdict.candidate.name)
    ranks = {row.cell_id: row.rank for row in matrix.rows}
    panels, curve_note = draw_curves(judgement.comparison, names, ranks)
    run = data.candidate.run or data.baseline.run
    return {
        "verdict": verdict,
        "sentence": banner(verdict),
        "symbol": RUN_SYMBOL[verdict.verdict],
        "exit_words": tables.EXIT_WORDS.get(verdict.exit_code, "unknown"),
        "single_run": is_single_run(judgement.comparison),
        "counts": [(str(word), number) for word, number in verdict.counts.items() if number],
        "run": run,
        "machine": machine_sentence(run.environment) if run else "machine not recorded",
        "took": tables.duration(run.started_at, run.finished_at) if run else None,
        "lights": lights(data),
        "differences": differences(data),
        "matrix": matrix,
        "forest": forest(matrix.columns, matrix.rows),
        "correctness": correctness(data),
        "drafts": drafts(judgement.comparison, matrix.rows),
        "panels": panels,
        "curve_note": curve_note,
        "attribution": attribution_section(whole_run(data.candidate)) if data.candidate.run else None,
        "pages": cell_pages(data, matrix.columns, matrix.rows),
        "cost": switch_cost(data),
        "provenance": provenance(data),
        "sketch_size": (WIDTH, HEIGHT),
        "DASH": tables.DASH,
    }


def is_single_run(comparison: Comparison) -> bool:
    """Whether no metric was measured in more than one launch of each arm."""
    launches = [min(one.n_baseline, one.n_candidate) for one in comparison.findings]
    return max(launches, default=0) == 1
