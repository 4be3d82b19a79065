"""Three comparisons end to end on the scripted path, whose speed is known: the same, 5 % slower, 10 % faster.

python benchmarks/scripted_comparisons.py [--folder DIR]

The noise floor is measured first. Ends with 1 when a verdict is not the one that the script must give.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

GAP_MS = 40.0  # between two tokens of the baseline
GATED = ("out_tps", "tpot_pooled_ms")
LOAD = (
    "concurrency=2", "tier=pr", "pairs=4", f"tier.gated=[{','.join(GATED)}]", "measure_s=2", "warmup_s=0",
    "isl=4", "osl=16",
)  # fmt: skip
BASELINE = f"baseline_set={{path.options.gap_ms: {GAP_MS:g}, path.options.first_ms: {GAP_MS:g}}}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A candidate, and what the gate must say of it."""

    name: str
    factor: float  # of the baseline's gap
    verdicts: tuple[str, ...]  # of the whole, any of them
    exit_codes: tuple[int, ...]


CASES = (
    Case(name="the same", factor=1.0, verdicts=("PASS", "INCONCLUSIVE"), exit_codes=(0, 3)),
    Case(name="5 % slower", factor=1.05, verdicts=("FAIL",), exit_codes=(1,)),
    Case(name="10 % faster", factor=0.9, verdicts=("PASS",), exit_codes=(0,)),
)


def harness(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and standard error of one command."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def candidate(factor: float) -> tuple[str, ...]:
    gap = f"{GAP_MS * factor:g}"
    return "baseline=scripted", BASELINE, "+path=scripted", *options(gap)


def options(gap: str) -> tuple[str, ...]:
    return f"path.options.gap_ms={gap}", f"path.options.first_ms={GAP_MS:g}"


def compare(folder: Path, case: Case) -> tuple[bool, list[str]]:
    """Whether the verdict is right, and a row per gated metric."""
    before = set(folder.glob("results/*/verdict.json"))
    code, said = harness(folder, *candidate(case.factor), *LOAD)
    found = sorted(set(folder.glob("results/*/verdict.json")) - before)
    if len(found) != 1:
        return False, [f"| {case.name} | no verdict: {said.strip().splitlines()[-1:]} | | | | {code} |"]
    verdict = json.loads(found[0].read_text(encoding="utf-8"))
    rows = []
    for entry in verdict["gates"]:
        bounds = entry["ci_pct"]
        loss = "" if bounds is None else f"{entry['loss_pct']:+.2f} [{bounds[0]:+.2f}, {bounds[1]:+.2f}]"
        rows.append(
            f"| {case.name} | {entry['metric'] or entry['gate']} | {loss} | {entry['n_pairs']} |"
            f" {entry['verdict']} | {verdict['verdict']} ({code}) |"
        )
    return verdict["verdict"] in case.verdicts and code in case.exit_codes, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where results/ goes; else a temporary one")
    given = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="scripted-comparisons-") as name:
        folder = Path(name) if given is None else given
        folder.mkdir(parents=True, exist_ok=True)
        code, said = harness(folder, "cmd=aa", "baseline=scripted", BASELINE, *LOAD)
        lines = [line for line in said.splitlines() if "slow-down is found" in line]
        print(*lines or [f"no noise floor (exit {code})"], sep="\n", end="\n\n")
        print("| candidate | metric | loss % [interval] | pairs | verdict | whole (exit) |")
        print("|---|---|---:|---:|---|---|", flush=True)
        right = True
        for case in CASES:
            fits, rows = compare(folder, case)
            print("\n".join(rows), flush=True)
            right &= fits
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
