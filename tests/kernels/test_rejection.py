"""Verification of drafts: what comes out is distributed as the target, whatever the drafts are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paths.kernels.rejection import reference, torch_impl
from paths.kernels.rejection.cases import seed_of_zero
from paths.kernels.sample.noise import ACCEPT_TOKEN, DRAFT_STREAM, accept_uniform, gumbel_noise
from paths.kernels.sample.reference import accept_uniform as defined_uniform

IMPLEMENTATIONS = {"torch": torch_impl.rejection, "reference": reference.rejection}
INF = float("inf")
DRAWS = 20_000
TARGET = torch.tensor([0.35, 0.25, 0.2, 0.1, 0.07, 0.03])
PROPOSAL = torch.tensor([0.1, 0.1, 0.05, 0.4, 0.3, 0.05])


def verify(
    logits,
    drafts,
    probs=None,
    *,
    requests=1,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    seeds=None,
    positions=None,
    impl="torch",
):
    """Every request has the same number of drafts: logits [requests, K + 1, V], drafts [requests, K]."""
    logits = torch.as_tensor(logits, dtype=torch.float32).expand(requests, -1, -1)
    drafts = torch.as_tensor(drafts, dtype=torch.int64).expand(requests, -1)
    rows = logits.shape[1]
    starts = torch.arange(requests + 1, dtype=torch.int32) * rows
    padded = torch.cat([drafts, torch.full((requests, 1), 0)], dim=1)  # the last entry is never looked at
    first = torch.zeros(requests, dtype=torch.int64) if positions is None else positions
    return IMPLEMENTATIONS[impl](
        logits.flatten(0, 1),
        padded.flatten(),
        None if probs is None else torch.as_tensor(probs, dtype=torch.float32).expand(requests, -1, -1),
        row_starts=starts,
        rows=torch.arange(requests, dtype=torch.int32).repeat_interleave(rows),
        temperature=torch.full((requests,), float(temperature)),
        top_k=torch.full((requests,), top_k, dtype=torch.int32),
        top_p=torch.full((requests,), float(top_p)),
        seeds=torch.arange(requests) if seeds is None else seeds,
        positions=(first[:, None] + torch.arange(rows)).flatten(),
        max_drafts=drafts.shape[1],
        all_greedy=temperature == 0,
    )


def assert_distributed(tokens, expected):
    """Chi-square at its 99.9 % quantile."""
    quantile = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}
    expected = np.asarray(expected, dtype=float)
    counts = np.bincount(tokens.numpy(), minlength=len(expected))
    possible = expected > 0
    assert counts[~possible].sum() == 0
    expected = expected[possible] * len(tokens)
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    assert statistic < quantile[possible.sum() - 1]


def drawn_drafts(count):
    """Drafts from PROPOSAL with the noise of the draft stream."""
    noise = gumbel_noise(
        seeds=torch.arange(count), positions=torch.full((count,), DRAFT_STREAM), vocab_size=len(PROPOSAL)
    )
    return (PROPOSAL.log() + noise).argmax(-1)[:, None]


def test_first_token_follows_the_target_when_drafts_were_drawn():
    drafts = drawn_drafts(DRAWS)
    assert_distributed(drafts[:, 0], PROPOSAL)
    logits = TARGET.log().expand(2, -1)
    tokens, counts = verify(logits, drafts, PROPOSAL[None], requests=DRAWS)
    assert_distributed(tokens[:, 0], TARGET)
    # accepted with probability Σ min(p, q)
    accepted = (counts == 2).float().mean().item()
    assert accepted == pytest.approx(torch.minimum(TARGET, PROPOSAL).sum().item(), abs=0.015)
    assert torch.equal(tokens[counts == 2, 0], drafts[counts == 2, 0])
    assert (tokens[counts == 1, 1] == -1).all()
    assert_distributed(tokens[counts == 2, 1], TARGET)  # the bonus


@pytest.mark.parametrize("draft", [0, 3, 5])
def test_first_token_follows_the_target_for_a_one_hot_draft(draft):
    tokens, counts = verify(TARGET.log().expand(2, -1), [draft], requests=DRAWS)
    assert_distributed(tokens[:, 0], TARGET)
    assert (counts == 2).float().mean().item() == pytest.approx(TARGET[draft].item(), abs=0.012)
    assert (tokens[counts == 1, 0] != draft).all()


@pytest.mark.parametrize("given", [True, False])
def test_masks_apply_before_verification(given):
    """top-k 3 leaves 0, 1, 2; top-p over these: 0.4375 + 0.3125 reach 0.7."""
    kept = np.array([0.35, 0.25, 0, 0, 0, 0]) / 0.6
    drafts = drawn_drafts(DRAWS) if given else torch.full((DRAWS, 1), 3)
    tokens, counts = verify(
        TARGET.log().expand(2, -1),
        drafts,
        PROPOSAL[None] if given else None,
        requests=DRAWS,
        top_k=3,
        top_p=0.7,
    )
    assert_distributed(tokens[:, 0], kept)
    assert (counts[drafts[:, 0] > 1] == 1).all()  # outside of the kept set: rejected with certainty


def test_temperature_applies_before_verification():
    tokens, _ = verify(TARGET.log().expand(2, -1), [0], requests=DRAWS, temperature=0.5)
    assert_distributed(tokens[:, 0], (TARGET**2 / (TARGET**2).sum()).numpy())


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("drafts", "tokens"),
    [
        ([], [2]),
        ([2, 0, 1], [2, 0, 1, 0]),  # all accepted, and the bonus
        ([1, 0, 1], [2, -1, -1, -1]),
        ([2, 1, 1], [2, 0, -1, -1]),
        ([2, -1, 1], [2, 0, -1, -1]),
    ],
)
def test_greedy_takes_drafts_until_the_first_mismatch(impl, drafts, tokens):
    """Row maxima 2, 0, 1, 0; the last two by the lower id of a tie."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0], [0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    got, counts = verify(logits[: len(drafts) + 1], [drafts], temperature=0, impl=impl)
    assert got.tolist() == [tokens]
    assert counts.tolist() == [len([t for t in tokens if t >= 0])]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_greedy_with_any_drafts_equals_greedy_without(impl):
    """A model whose next token is a function of the last, and random drafts: the same text comes out."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(9, 9, generator=generator)
    plain = [0]
    while len(plain) < 60:
        plain.append(int(table[plain[-1]].argmax()))
    known = [0]
    while len(known) < 60:
        drafts = torch.randint(0, 9, (3,), generator=generator)
        drafts[0] = table[known[-1]].argmax() if len(known) % 2 else drafts[0]
        logits = table[torch.tensor([known[-1], *drafts.tolist()])]
        tokens, counts = verify(logits, drafts[None], temperature=0, impl=impl)
        known += tokens[0, : int(counts[0])].tolist()
    assert known[:60] == plain


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
class TestEdges:
    def test_u_of_zero_does_not_accept_an_impossible_draft(self, impl):
        seed = torch.tensor([seed_of_zero(position=7)])
        position = torch.tensor([7])
        assert accept_uniform(seeds=seed, positions=position).item() == 0.0
        logits = torch.tensor([[0.0, -INF], [0.0, 0.0]])
        for probs in (None, [[0.5, 0.5]]):
            tokens, counts = verify(logits, [[1]], probs, seeds=seed, positions=position, impl=impl)
            assert tokens[0].tolist() == [0, -1] and counts.tolist() == [1]

    def test_a_draft_that_q_cannot_draw_is_rejected(self, impl):
        logits = torch.tensor([[5.0, 0.0], [0.0, 0.0]])
        _, counts = verify(logits, [0], [[0.0, 1.0]], requests=50, impl=impl)
        assert (counts == 1).all()

    @pytest.mark.parametrize("draft", [-1, 6, 10**9])
    def test_no_token_is_rejected_and_replaced_from_the_target(self, impl, draft):
        tokens, counts = verify(TARGET.log().expand(2, -1), [draft], PROPOSAL[None], requests=500, impl=impl)
        plain, _ = verify(TARGET.log()[None], torch.zeros(1, 0), requests=500, impl=impl)
        assert (counts == 1).all()
        assert torch.equal(tokens[:, 0], plain[:, 0])  # the same draw as without a draft

    def test_equal_distributions_always_accept(self, impl):
        logits = torch.tensor([1.5, 0.25, -2.0, 0.0])
        _, counts = verify(logits.expand(2, -1), [1], logits.softmax(0)[None], requests=500, impl=impl)
        assert (counts == 2).all()

    def test_an_empty_residual_falls_back_to_the_target(self, impl):
        """q is nowhere below p, and the draft is impossible under p."""
        logits = torch.tensor([[0.0, 1.0, -INF], [0.0, 0.0, 0.0]])
        tokens, counts = verify(logits, [2], [[1.0, 1.0, 1.0]], requests=500, impl=impl)
        plain, _ = verify(logits[:1], torch.zeros(1, 0), requests=500, impl=impl)
        assert (counts == 1).all()
        assert torch.equal(tokens[:, 0], plain[:, 0])
        assert set(tokens[:, 0].tolist()) == {0, 1}

    def test_one_hot_drafts_of_probability_one_and_zero(self, impl):
        sure = torch.tensor([[-INF, 2.0, -INF], [0.0, 0.0, 0.0]])
        _, counts = verify(sure, [1], requests=200, impl=impl)
        assert (counts == 2).all()
        tokens, counts = verify(sure, [0], requests=200, impl=impl)
        assert (counts == 1).all() and (tokens[:, 0] == 1).all()

    def test_nan_never_wins(self, impl):
        logits = torch.tensor([[0.0, float("nan"), 1.0], [float("nan"), 0.0, 1.0]])
        tokens, _ = verify(logits, [1], requests=200, impl=impl)
        assert not (tokens[:, 0] == 1).any() and not (tokens[:, 1] == 0).any()

    def test_seed_and_position_decide_not_the_batch(self, impl):
        seeds, positions = torch.tensor([5, 9, -2]), torch.tensor([3, 100, 7])
        logits = TARGET.log().expand(3, -1)
        whole, _ = verify(logits, [[0, 1]], requests=3, seeds=seeds, positions=positions, impl=impl)
        for r in range(3):
            alone, _ = verify(
                logits, [[0, 1]], seeds=seeds[r : r + 1], positions=positions[r : r + 1], impl=impl
            )
            assert torch.equal(alone[0], whole[r])

    def test_requests_without_rows_yield_nothing(self, impl):
        tokens, counts = IMPLEMENTATIONS[impl](
            torch.zeros(0, 4),
            torch.zeros(0, dtype=torch.int64),
            None,
            row_starts=torch.zeros(3, dtype=torch.int32),
            rows=torch.zeros(0, dtype=torch.int32),
            temperature=torch.ones(2),
            top_k=torch.zeros(2, dtype=torch.int32),
            top_p=torch.ones(2),
            seeds=torch.zeros(2, dtype=torch.int64),
            positions=torch.zeros(0, dtype=torch.int64),
            max_drafts=2,
            all_greedy=False,
        )
        assert tokens.tolist() == [[-1] * 3] * 2 and counts.tolist() == [0, 0]


def test_uniforms_are_uniform_and_independent_of_the_noise():
    seeds, positions = torch.arange(5000), torch.zeros(5000, dtype=torch.int64)
    u = accept_uniform(seeds=seeds, positions=positions)
    assert ((u >= 0) & (u < 1)).all()
    assert u.mean().item() == pytest.approx(0.5, abs=0.015)
    noise = gumbel_noise(seeds=seeds, positions=positions, vocab_size=4)
    correlations = [np.corrcoef(u.numpy(), noise[:, i].numpy())[0, 1] for i in range(4)]
    assert max(abs(c) for c in correlations) < 0.05
    assert ACCEPT_TOKEN < 0  # no token shares its noise
    assert [defined_uniform(int(s), 0) for s in seeds[:20]] == u[:20].tolist()
