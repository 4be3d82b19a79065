"""V1's inputs of a single request, which are slices of what is there, equal those that are built for many."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paths.engine.batch import PAGE_SIZE
from paths.engine.host_memory import HostStaging, TransferCounts
from paths.engine.requests import RequestState, RequestTable
from paths.engine.scheduler import StepPlan
from paths.engine.static_inputs import DraftInputs, StaticInputs
from paths.generic_mrv1.drafter import DrafterV1
from paths.generic_mrv1.input_batch import InputBatch
from paths.generic_mrv1.step_inputs import StepInputs
from tests.engine.mock import request

CPU = torch.device("cpu")
LENGTH, MTP, REQUESTS = 256, 3, 4


def int32(*values):
    return np.asarray(values, dtype=np.int32)


class Setup:
    """Requests of known tokens, pages and drafts, and two sets of inputs: of one request, and as of many."""

    def __init__(self):
        rng = np.random.default_rng(7)
        table = RequestTable(max_num_seqs=REQUESTS, max_model_len=LENGTH, seed=1)
        self.batch = InputBatch(table, mtp=MTP)
        for number in range(REQUESTS):
            slot = table.admit(RequestState(request=request(number, [5], max_tokens=9), arrival=number))
            table.block_table[slot] = rng.permutation(99)[: table.block_table.shape[1]] + 1
            self.batch.add(slot, table)
            self.batch.update_blocks(int32(slot), table)
        self.batch.token_ids[:] = rng.integers(1, 900, self.batch.token_ids.shape)
        self.batch.draft_ids[:, :-1] = rng.integers(1, 900, (REQUESTS, MTP))
        self.table = table
        self.sides = [self._side(), self._side()]

    def _side(self):
        inputs = StaticInputs(
            max_tokens=LENGTH,
            max_reqs=REQUESTS,
            max_blocks=self.table.block_table.shape[1],
            index_topk=16,
            device=CPU,
        )
        staging = HostStaging(CPU, TransferCounts())
        drafts = SimpleNamespace(
            inputs=DraftInputs(inputs, hidden_size=4, dtype=torch.float32), follow_greedy=lambda: None
        )
        drafter = DrafterV1(
            model=None, drafts=drafts, kernels=None, batch=self.batch, sampling=None, staging=staging
        )
        return SimpleNamespace(
            inputs=drafts.inputs, step=StepInputs(inputs, self.batch, staging), drafter=drafter
        )

    def equal(self, tokens, requests):
        """Of both sides, what a pass over so many rows reads."""
        one, many = (side.inputs.tensors() for side in self.sides)
        for name in ("input_ids", "positions", "slot_mapping", "req_rows", "lengths"):
            assert one[name][:tokens].tolist() == many[name][:tokens].tolist(), name
        assert one["block_table"][:requests].tolist() == many["block_table"][:requests].tolist()


def plan(*rows, samples=None, grown=()):
    """rows: slot, start, tokens, drafts."""
    slots, start, tokens, drafts = (int32(*column) for column in zip(*rows, strict=True))
    return StepPlan(
        slots=slots,
        start=start,
        num_tokens=tokens,
        num_samples=len(rows) if samples is None else samples,
        num_drafts=drafts if drafts.any() else None,
        admitted=(),
        released=(),
        grown=int32(*grown),
        mtp=MTP,
    )


PLANS = [
    plan((2, 0, 100, 0)),
    plan((2, 100, 4, 3)),
    plan((2, 104, 1, 0)),
    plan((1, 62, 4, 3), (2, 105, 4, 3)),
    plan((1, 66, 111, 0), samples=0),
    plan((1, 63, 2, 1)),
    plan((1, 60, 4, 3)),
    plan((3, 61, 3, 2)),
    plan((0, 127, 1, 0), (3, 5, 63, 0)),
    plan((0, 0, 63, 0)),
]


def test_inputs_of_a_step():
    setup = Setup()
    for step in PLANS:
        setup.sides[0].step.prepare(step)
        setup.sides[1].step._prepare_many(step)
        setup.equal(step.total_tokens, len(step.slots))


def test_new_pages_and_another_request_in_the_row_are_sent():
    setup = Setup()
    table, batch = setup.table, setup.batch
    setup.sides[0].step.prepare(plan((2, 3, 1, 0)))
    table.block_table[2] += 7
    batch.update_blocks(int32(2), table)
    for step in (plan((2, 4, 1, 0), grown=(2,)), plan((3, 4, 1, 0))):
        for side, prepare in zip(setup.sides, ("prepare", "_prepare_many"), strict=True):
            getattr(side.step, prepare)(step)
        setup.equal(1, 1)
    batch.remove([2])  # the last row takes its place
    assert batch.row_of_slot[3] == 2
    for side, prepare in zip(setup.sides, ("prepare", "_prepare_many"), strict=True):
        getattr(side.step, prepare)(plan((3, 64, 4, 3)))
    setup.equal(4, 1)


@pytest.mark.parametrize("start", [0, 60, 63, 64, 111, 200])
@pytest.mark.parametrize("rejected", [0, 1, 3])
def test_inputs_of_drafts(start, rejected):
    setup = Setup()
    step = plan((1, start, 4, 3))
    one, many = setup.sides
    end = start + 4 - rejected
    for side in setup.sides:
        side.step.prepare(step)
    one.drafter._prepare_first_of_one(step, 1, rejected, end)
    many.drafter._prepare_first(step, int32(rejected))
    setup.equal(4, 1)
    for name in ("last_rows", "last_positions", "last_lengths"):
        assert getattr(one.inputs, name)[0] == getattr(many.inputs, name)[0], name
    for number, limit in ((1, LENGTH), (2, end)):
        shapes = (
            one.drafter._prepare_later_of_one(number, 1, end - 1 + number, limit),
            many.drafter._prepare_later(number, int32(1), int32(end - 1 + number), int32(limit)),
        )
        assert shapes[0] == shapes[1]
        for side in setup.sides:
            side.inputs.input_ids[0] = 5
        setup.equal(1, 1)


@pytest.mark.parametrize("counts", [[4], [1], [4, 4], [2, 4, 1], [1, 1], []])
def test_drafts_that_a_step_judges(counts):
    setup = Setup()
    rows = int32(*range(len(counts)))[::-1]
    expected = []
    for row, count in zip(rows, counts, strict=True):
        expected += [*setup.batch.draft_ids[row, : count - 1], -1]
    assert setup.sides[0].drafter._judged(rows, int32(*counts)).tolist() == expected


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (0, 1), (0, 64), (63, 64), (63, 65), (100, 211), (128, 128)]
)
def test_slots_of_positions(start, end):
    batch = Setup().batch
    expected = [
        int(batch.block_table[2, p // PAGE_SIZE]) * PAGE_SIZE + p % PAGE_SIZE for p in range(start, end)
    ]
    assert batch.slots(2, start, end).tolist() == expected


def test_runs_of_tokens_are_appended():
    batch = Setup().batch
    before = batch.token_ids.copy()
    tokens = int32([7, 8, 9], [1, -1, -1])
    batch.append_runs(int32(3, 1), positions=int32(63, 200), counts=int32(3, 1), tokens=tokens)
    before[3, 63:66], before[1, 200] = (7, 8, 9), 1
    assert np.array_equal(batch.token_ids, before)
