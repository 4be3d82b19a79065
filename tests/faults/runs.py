"""Engines with planted faults through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.command_line import REPOSITORY, harness
from tests.gating import gated, verdict_of
from tests.shipped import prompts

FIXTURES = REPOSITORY / "tests" / "fixtures" / "planted_faults"
PLANTED = ("--config-dir", str(FIXTURES))
NO_LOAD = ("measure_s=0", "warmup_s=0")
SMALL = ("engine.max_model_len=2048", "engine.max_num_seqs=64", "engine.kv_pages=800")


def write_prompts(file: Path, count: int, *, shots: int) -> tuple[str, str]:
    """A workload of held-out problems; the words that choose it."""
    lines = (json.dumps({"prompt": text}) for text in prompts(count, shots=shots))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "workload=dataset", f"workload.file={file}"


Gates = list[dict[str, Any]]


def against(baseline: str, candidate: str, *words: str, cwd: Path, timeout: int = 850) -> Gates:
    """The gates of a comparison of two paths in one pair of launches."""
    paths = (f"baseline={baseline}", f"+path={candidate}", "tier=pr", "pairs=1")
    cwd.mkdir()
    done = gated(*paths, *words, *NO_LOAD, *SMALL, *PLANTED, cwd=cwd, timeout=timeout)
    assert done.returncode in (0, 1, 3, 4), done.stdout + done.stderr
    return verdict_of(cwd)["gates"]


def verdicts(gates: Gates, metric: str) -> set[str]:
    """At every concurrency that was asked."""
    found = {gate["verdict"] for gate in gates if gate["metric"] == metric}
    assert found, f"nobody judged {metric}"
    return found


def run(*words: str, cwd: Path, timeout: int = 850) -> int:
    """A run without a comparison; its exit code."""
    done = harness(*words, *NO_LOAD, *SMALL, *PLANTED, cwd=cwd, timeout=timeout)
    assert done.returncode in (0, 6), done.stdout + done.stderr
    return done.returncode
