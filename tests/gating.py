"""Comparisons through the command line on scripted paths, and what they leave behind."""

import json

from tests.command_line import harness_within

# a busy test machine fails the checks of a load, and somebody may edit the tree meanwhile
PATIENT = """
import sys
import harness.environment
harness.environment.code_revision = harness.environment.current_revision = lambda: "r1"
import reports.compare.cells
reports.compare.cells.GATED_CHECKS = ("success", "unique_prompts")
from harness.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
QUICK = ("measure_s=0.2", "warmup_s=0", "isl=4", "osl=4", "path.options.first_ms=5")
FAST_BASELINE = ("baseline=scripted", "baseline_set={path.options.first_ms: 5, path.options.gap_ms: 2}")


def gated(*words, cwd, program=PATIENT, timeout=300):
    return harness_within(program, *words, cwd=cwd, timeout=timeout)


def run_of(folder):
    """The one run of a folder that may have A/A files beside it."""
    runs = [one for one in (folder / "results").iterdir() if one.name != "aa"]
    (run,) = runs
    return run


def verdict_of(folder):
    return json.loads((run_of(folder) / "verdict.json").read_text())
