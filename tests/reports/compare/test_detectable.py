"""What a tier can see: the size that is said to be found is found as often as said, by the gate itself."""

import numpy as np
import pytest

from reports.compare.decide import decide
from reports.compare.detectable import detectable, in_words
from reports.compare.effects import margin_of
from reports.compare.estimate import from_pairs
from reports.compare.floor import Noise
from reports.compare.metric_table import METRICS
from reports.compare.words import Verdict
from tests.reports.compare.arms import tier

RULE = METRICS["out_tps"]
PR = tier(low=4, high=6)


def noise_of(sd):
    """A/A losses of eight pairs with exactly this standard deviation."""
    shape = np.array([-1.4, -0.9, -0.5, -0.1, 0.2, 0.6, 0.8, 1.3])
    shape -= shape.mean()
    return Noise(losses=tuple(float(x) for x in shape / shape.std(ddof=1) * sd))


@pytest.mark.parametrize("sd", [0.005, 0.02, 0.05])
def test_the_size_is_found_in_four_of_five_cases(sd):
    noise = noise_of(sd)
    loss = np.log1p(detectable(RULE, noise, PR).loss_pct / 100)
    rng, found = np.random.default_rng(7), 0
    margin = max(margin_of(RULE), noise.floor(6))
    for _ in range(400):
        estimate = from_pairs(rng.normal(loss, sd, 6), [False, True] * 3, alpha=PR.alpha, noise=noise)
        decision = decide(estimate, margin=margin, floor=noise.floor(6), why_no_floor="", fewest=4)
        found += decision.verdict is Verdict.FAIL
    assert 0.70 <= found / 400 <= 0.92


def test_less_noise_and_more_pairs_see_more():
    sizes = [detectable(RULE, noise_of(sd), PR).loss_pct for sd in (0.001, 0.01, 0.05)]
    assert sizes == sorted(sizes) and sizes[0] > 2.0  # never below the margin
    assert detectable(RULE, noise_of(0.05), tier(low=4, high=10)).loss_pct < sizes[2]


def test_the_sentence_names_both_clocks():
    said = in_words(
        "c64", PR, {"out_tps": noise_of(0.02), "cpu_s_per_token": noise_of(0.001), "al": noise_of(0.1)}
    )
    assert said.startswith("c64: at tier ") and "(6 pairs, alpha 0.025)" in said
    assert (
        "by out_tps, 2." in said
        and said.endswith("% by cpu_s_per_token")
        and "al" not in said.split("from")[1]
    )
    assert in_words("c64", PR, {"al": noise_of(0.1)}) is None
