"""What runners send from: rings that leave a step in flight alone, and writes that land where they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paths.dsa_mrv2.staged_writes import StagedWrites
from paths.dsa_mrv2.states import RequestStates
from paths.engine.host_memory import HostRing, HostStaging, TransferCounts
from paths.engine.requests import RequestState, RequestTable
from paths.engine.scheduler import StepPlan
from paths.kernels.registry import Kernels
from tests.engine.mock import request

CPU = torch.device("cpu")


def int32(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_ring_keeps_as_many_steps_as_it_is_deep(depth):
    ring = HostRing(CPU, depth=depth, counts=TransferCounts())
    sent = [ring.send([int32(n, n)])[0] for n in range(depth)]
    assert [t.tolist() for t in sent] == [[n, n] for n in range(depth)]
    ring.send([int32(9, 9)])
    assert sent[0].tolist() == [9, 9]  # the oldest is overwritten, no other
    assert [t.tolist() for t in sent[1:]] == [[n, n] for n in range(1, depth)]


@pytest.mark.parametrize("sizes", [(0,), (1,), (3, 0, 5), (63, 64, 100), (5000, 1), (1024,)])
def test_parts_arrive_whole_and_aligned(sizes):
    counts = TransferCounts()
    ring = HostRing(CPU, depth=2, counts=counts)
    parts = [np.arange(size, dtype=np.int32) + 7 * size for size in sizes]
    grid = np.arange(12, dtype=np.int32).reshape(4, 3)
    sent = ring.send([*parts, grid])
    for part, tensor in zip([*parts, grid], sent, strict=True):
        assert tensor.numpy().tolist() == part.tolist()
        assert tensor.data_ptr() % 16 == sent[0].data_ptr() % 16
    assert counts.host_device_copies == 1


def test_staging_fills_the_first_rows_and_counts():
    counts = TransferCounts()
    staging = HostStaging(CPU, counts)
    out = torch.full((4, 2), -1, dtype=torch.int64)
    rows = staging.send("x", np.asarray([[1, 2], [3, 4]], dtype=np.int32), out)
    assert out.tolist() == [[1, 2], [3, 4], [-1, -1], [-1, -1]]
    assert rows.data_ptr() == out.data_ptr()
    assert staging.read(out[0]).tolist() == [1, 2]
    assert vars(counts) == {"host_device_copies": 2, "blocking_waits": 1, "output_waits": 0}


def test_writes_are_packed_in_order():
    writes = StagedWrites()
    assert not writes
    writes.add(10, int32(1, 2, 3))
    writes.add_rows(np.asarray([4, 40]), np.asarray([[5, 6], [7, 8]], dtype=np.int32))
    rows, values = writes.parts()
    assert rows.tolist() == [[10, 0, 3], [4, 3, 2], [40, 5, 2]]
    assert values.tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert writes.longest == 3


@pytest.mark.parametrize("max_model_len", [64, 100, 111])
def test_staged_state_is_the_tables_and_nothing_else_changes(max_model_len):
    table = RequestTable(max_num_seqs=5, max_model_len=max_model_len, seed=3)
    states = RequestStates(table, CPU, mtp=2)
    states.words.random_(-(2**31), 2**31 - 1)
    before = {name: t.clone() for name, t in vars(states).items() if isinstance(t, torch.Tensor)}
    slots = []
    for i, length in enumerate((1, 63, 7)):
        one = request(i, list(range(length)), max_tokens=1, temperature=0.5 * i, top_k=i, top_p=0.9, seed=-i)
        slots.append(table.admit(RequestState(request=one, arrival=i)))
    table.block_table[slots[0]] = 4
    table.block_table[slots[1]] = 5
    plan = StepPlan(
        slots=int32(*slots),
        start=int32(0, 0, 0),
        num_tokens=int32(1, 63, 7),
        num_samples=3,
        admitted=tuple(slots[1:]),
        released=(),
        grown=int32(slots[0], slots[1]),
    )
    writes = states.stage(plan, table)
    rows, values = (torch.from_numpy(part) for part in writes.parts())
    Kernels(CPU, "torch").apply_writes(states.words, rows, values, longest=writes.longest)
    wanted = {name: t.clone() for name, t in before.items()}
    for slot in slots[1:]:
        known = int(table.total_len[slot])
        wanted["token_ids"][slot, :known] = torch.arange(known)
        wanted["computed"][slot] = 0
        wanted["total_len"][slot] = known
        for name in ("temperature", "top_k", "top_p"):
            wanted[name][slot] = float(getattr(table, name)[slot])
        wanted["seeds"][slot] = int(table.seed[slot])
        wanted["limits"][slot] = int(table.max_total[slot])
    for slot in slots[:2]:
        wanted["block_table"][slot] = torch.from_numpy(table.block_table[slot])
    for name in set(RequestStates.__annotations__) - {"draft_probs"}:
        assert torch.equal(getattr(states, name).nan_to_num(), wanted[name].nan_to_num()), name
        assert getattr(states, name).data_ptr() % 16 == states.words.data_ptr() % 16 or name == "draft_tokens"


def test_state_beyond_32_bit_offsets_is_refused():
    class Huge:
        token_ids = np.broadcast_to(np.int32(0), (2**16, 2**15))
        block_table = np.broadcast_to(np.int32(0), (2**16, 4))

    with pytest.raises(ValueError, match="fewer slots or a shorter context"):
        RequestStates(Huge(), CPU)
