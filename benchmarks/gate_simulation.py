"""How often the gate is wrong: simulated comparisons through the real compare and gate functions.

    python benchmarks/gate_simulation.py [--comparisons 2000] [--scenario NAME] > table.md

Each comparison is what `tier=pr` does: an A/A run for the noise floor, four pairs of launches in ABBA order,
two more where a cell is undecided. Three cells, four metrics. Only the numbers are made up.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.composition import packaged_conf
from harness.tier import Tier, read_tier
from reports.compare.cells import ArmCell, LaunchNumbers
from reports.compare.compare import Arms, compare
from reports.compare.floor import Noise, NoiseFloor
from reports.compare.metric_table import METRICS
from reports.gate.outcome import judge

CELLS = ("c1", "c16", "c256")
SPEEDS = {"out_tps": 1000.0, "tpot_pooled_ms": 8.0, "ttft_p50_ms": 300.0, "cpu_s_per_token": 0.002}
SHARED = 0.5  # share of a launch's variance that its cells have in common
ALIKE = 0.5  # correlation of the metrics of a cell within a launch
TAIL = 0.25  # a launch in the tail is slower by up to this


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`pair_sd`: sd of the losses of pairs; `autocorrelation`: between one launch and the next."""

    name: str
    pair_sd: float
    autocorrelation: float = 0.0
    tail: float = 0.0  # share of launches that are much slower
    slot: float = 0.0  # loss of the second launch of a pair
    drift: float = 0.0  # loss from the first launch to the last


SCENARIOS = (
    Scenario(name="1 % pair sd", pair_sd=0.01),
    Scenario(name="2 % pair sd", pair_sd=0.02),
    Scenario(name="5 % pair sd", pair_sd=0.05),
    Scenario(name="1 %, autocorrelation 0.6", pair_sd=0.01, autocorrelation=0.6),
    Scenario(name="2 %, autocorrelation 0.6", pair_sd=0.02, autocorrelation=0.6),
    Scenario(name="1 %, 2 % of launches in a heavy tail", pair_sd=0.01, tail=0.02),
    Scenario(name="2 %, 2 % of launches in a heavy tail", pair_sd=0.02, tail=0.02),
    Scenario(name="1 %, slot effect 1 %", pair_sd=0.01, slot=0.01),
    Scenario(name="1 %, drift 3 %", pair_sd=0.01, drift=0.03),
    Scenario(name="2 %, all of these", pair_sd=0.02, autocorrelation=0.6, tail=0.02, slot=0.01, drift=0.03),
)


def losses(scenario: Scenario, rng: np.random.Generator, comparisons: int, launches: int) -> np.ndarray:
    """Log losses [comparisons, launches, cells, metrics] of launches of one and the same engine, in order."""
    shape = (comparisons, launches, len(CELLS), len(SPEEDS))
    common = rng.normal(size=(*shape[:2], 1, 1)) * np.sqrt(SHARED)
    own = rng.normal(size=(*shape[:3], 1)) * np.sqrt((1 - SHARED) * ALIKE)
    noise = common + own + rng.normal(size=shape) * np.sqrt((1 - SHARED) * (1 - ALIKE))
    rho = scenario.autocorrelation
    for launch in range(1, launches):
        noise[:, launch] = rho * noise[:, launch - 1] + np.sqrt(1 - rho**2) * noise[:, launch]
    # neighbours that are alike differ less: scaled so that the pairs have the sd that the scenario says
    result = noise * scenario.pair_sd / np.sqrt(2 * (1 - rho))
    if scenario.tail:
        slow = rng.random(size=(*shape[:2], 1, 1)) < scenario.tail
        result += slow * rng.uniform(0.05, TAIL, size=(*shape[:2], 1, 1))
    result += scenario.drift * np.linspace(0, 1, launches)[None, :, None, None]
    return result + scenario.slot * (np.arange(launches) % 2)[None, :, None, None]


def pairs_of(noise: np.ndarray, effect: float) -> tuple[np.ndarray, np.ndarray]:
    """Baseline and candidate [pairs, cells, metrics] of one plan [2 * pairs, ...] in ABBA order."""
    first, second = noise[0::2], noise[1::2]
    swap = (np.arange(len(first)) % 2 == 1)[:, None, None]
    return np.where(swap, second, first), np.where(swap, first, second) + effect


def arm(name: str, values: np.ndarray, pairs: int) -> dict[str, ArmCell]:
    """`values`: log losses [pairs, cells, metrics]."""
    cells = {}
    for at, cell in enumerate(CELLS):
        launches = []
        for pair in range(pairs):
            numbers = {
                metric: speed * float(np.exp(METRICS[metric].worse_sign * values[pair, at, which]))
                for which, (metric, speed) in enumerate(SPEEDS.items())
            }
            slot = int((pair % 2 == 1) == (name == "A"))
            launches.append(LaunchNumbers(launch_id=f"{name}{pair}", pair=pair, slot=slot, values=numbers))
        cells[cell] = ArmCell(cell_id=cell, name=cell, launches=tuple(launches))
    return cells


def floor_of(noise: np.ndarray) -> NoiseFloor:
    """What `cmd=aa` would have found."""
    a, b = pairs_of(noise, 0.0)
    differences = b - a
    return NoiseFloor(
        noise={
            (cell, metric): Noise(losses=tuple(map(float, differences[:, at, which])))
            for at, cell in enumerate(CELLS)
            for which, metric in enumerate(SPEEDS)
        }
    )


def decide(tier: Tier, noise: np.ndarray, aa: np.ndarray, effect: float) -> str:
    """The verdict of one comparison, more pairs added while a cell is undecided."""
    a, b = pairs_of(noise, effect)
    floor = floor_of(aa)
    verdict = ""
    for pairs in tier.pairs.looks:
        arms = Arms(baseline=arm("A", a, pairs), candidate=arm("B", b, pairs), interleaved=True)
        comparison = compare(arms, tier=tier, floor=floor)
        verdict = str(judge(comparison).verdict)
        if not comparison.undecided():
            break
    return verdict


def simulate(tier: Tier, scenario: Scenario, effect: float, comparisons: int) -> Counter[str]:
    """Verdicts of so many comparisons of a candidate that is slower by `effect` (log)."""
    gc.freeze()  # Holm's adjustment in statsmodels collects garbage at each call: 0.1 s with all of the heap
    rng = np.random.default_rng([20260101, SCENARIOS.index(scenario), round(1000 * effect) % 997])
    launches = 2 * tier.pairs.max
    noise = losses(scenario, rng, comparisons, launches)
    aa = losses(scenario, rng, comparisons, launches)
    return Counter(decide(tier, noise[i], aa[i], effect) for i in range(comparisons))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=2000)
    parser.add_argument("--scenario", default="", help="only those with this in their name")
    parser.add_argument("--tier", default="pr")
    options = parser.parse_args()
    tier = read_tier(options.tier, [Path(packaged_conf())], list(METRICS))
    begin = time.perf_counter()
    print(f"Tier {tier.name}, {options.comparisons} comparisons per row; per cent of them.\n")
    print("| launches | candidate | FAIL | INCONCLUSIVE | PASS |\n|---|---|---:|---:|---:|", flush=True)
    slower = float(np.log(1.05))
    rows = [
        (0.0, "the same", SCENARIOS),
        (slower, "5 % slower", SCENARIOS),
        (-slower, "5 % faster", SCENARIOS[:3]),
    ]
    for effect, words, scenarios in rows:
        for scenario in scenarios:
            if options.scenario in scenario.name:
                counts = simulate(tier, scenario, effect, options.comparisons)
                shares = (
                    f"{100 * counts[word] / options.comparisons:.1f}"
                    for word in ("FAIL", "INCONCLUSIVE", "PASS")
                )
                print(f"| {scenario.name} | {words} | {' | '.join(shares)} |", flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} s on one core.")


if __name__ == "__main__":
    main()
