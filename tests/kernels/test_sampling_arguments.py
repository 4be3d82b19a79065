"""Sampling and preparation: wrong arguments are refused before a launch, wrong indices under checks."""

from __future__ import annotations

import re

import pytest
import torch

from paths.kernels.registry import Kernels

pytest.importorskip("triton")
from paths.kernels.prepare_inputs import triton_impl as prepare
from paths.kernels.rejection.triton_impl import rejection
from paths.kernels.sample.triton_impl import sample

CPU = torch.device("cpu")
I32, I64 = torch.int32, torch.int64


def sampling(count=3, vocab=7, **changes):
    arguments = {
        "logits": torch.zeros(count, vocab),
        "temperature": torch.ones(count),
        "top_k": torch.zeros(count, dtype=I32),
        "top_p": torch.ones(count),
        "seeds": torch.zeros(count, dtype=I64),
        "positions": torch.zeros(count, dtype=I64),
        "all_greedy": False,
    }
    return arguments | changes


def verification(**changes):
    """Two requests of one draft each."""
    arguments = sampling(count=4) | {
        "draft_ids": torch.zeros(4, dtype=I64),
        "draft_probs": None,
        "row_starts": torch.tensor([0, 2, 4], dtype=I32),
        "rows": torch.tensor([0, 0, 1, 1], dtype=I32),
        "max_drafts": 1,
    }
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"logits": torch.zeros(3, 7, dtype=torch.bfloat16)},
            "logits has dtype torch.bfloat16, allowed is torch.float32",
        ),
        ({"logits": torch.zeros(7, 3).t()}, "logits has strides (1, 3), allowed is a last stride of 1"),
        ({"logits": torch.zeros(3, 0)}, "logits has shape (3, 0), allowed is a vocabulary of at least 1"),
        ({"temperature": torch.ones(2)}, "temperature has shape (2,), allowed is (3)"),
        ({"top_k": torch.zeros(3, dtype=I64)}, "top_k has dtype torch.int64, allowed is torch.int32"),
        ({"seeds": torch.zeros(6, dtype=I64)[::2]}, "seeds has strides (2,), allowed is a contiguous tensor"),
        ({"positions": torch.zeros(4, dtype=I64)}, "positions has shape (4,), allowed is (3)"),
        ({"rows": torch.zeros(3, dtype=I64)}, "rows has dtype torch.int64, allowed is torch.int32"),
    ],
)
def test_sample_names_the_argument(changes, message):
    with pytest.raises(ValueError, match=re.escape(f"sample: {message}")):
        sample(**sampling(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_ids": torch.zeros(4, dtype=I32)}, "draft_ids has dtype torch.int32, allowed is torch.int64"),
        ({"draft_probs": torch.zeros(4, 1, 8)}, "draft_probs has shape (4, 1, 8), allowed is (4, any, 7)"),
        (
            {"row_starts": torch.zeros(3, dtype=I64)},
            "row_starts has dtype torch.int64, allowed is torch.int32",
        ),
        ({"rows": torch.zeros(5, dtype=I32)}, "rows has shape (5,), allowed is (4)"),
    ],
)
def test_rejection_names_the_argument(changes, message):
    with pytest.raises(ValueError, match=re.escape(f"rejection: {message}")):
        rejection(**verification(**changes))


def test_preparation_names_the_argument():
    slots, starts = torch.zeros(2, dtype=I32), torch.zeros(3, dtype=I32)
    with pytest.raises(ValueError, match=r"prepare_positions: lengths has shape \(3,\), allowed is \(4\)"):
        prepare.prepare_positions(
            slots,
            starts,
            torch.zeros(2, dtype=I64),
            positions=torch.zeros(4, dtype=I64),
            req_rows=torch.zeros(4, dtype=I32),
            lengths=torch.zeros(3, dtype=I32),
            seq_lens=slots,
        )
    with pytest.raises(ValueError, match=r"gather_block_table: slots has dtype torch\.int64"):
        prepare.gather_block_table(
            slots.long(), torch.zeros(2, 3, dtype=I32), out=torch.zeros(2, 3, dtype=I32)
        )
    with pytest.raises(ValueError, match=r"gather_rows: x has dtype torch\.float64"):
        prepare.gather_rows(torch.zeros(2, 3, dtype=torch.float64), torch.zeros(1, dtype=I64))


class TestChecks:
    kernels = Kernels(CPU, "torch", checks=True)

    def test_parameters_that_do_not_exist(self):
        rows = torch.tensor([0, 2, 3], dtype=I32)
        with pytest.raises(ValueError, match=re.escape("sample: rows[2] is 3, allowed are 0 to 2")):
            self.kernels.sample(**sampling(), rows=rows)

    def test_more_drafts_than_fit(self):
        with pytest.raises(ValueError, match="rejection: rows per request"):
            self.kernels.rejection(**verification(max_drafts=0))

    def test_a_slot_without_state(self):
        slots = torch.tensor([0, 5], dtype=I32)
        with pytest.raises(
            ValueError, match=re.escape("gather_block_table: slots[1] is 5, allowed are -1 to 1")
        ):
            table = torch.zeros(2, 3, dtype=I32)
            self.kernels.gather_block_table(slots, table, out=table.clone())

    def test_more_logits_than_tokens(self):
        """They would be the rows of the request before."""
        one = torch.zeros(1, dtype=I64)
        with pytest.raises(ValueError, match="combine_tokens: tokens without logits"):
            self.kernels.combine_tokens(
                torch.tensor([0], dtype=I32),
                torch.tensor([0, 1], dtype=I32),
                torch.tensor([0, 2], dtype=I32),
                one,
                torch.zeros(1, 8, dtype=I32),
                one,
                torch.zeros(1, 1, dtype=I64),
                input_ids=one.clone(),
                logits_rows=torch.zeros(2, dtype=I64),
                logits_slots=torch.zeros(2, dtype=I32),
                next_positions=torch.zeros(2, dtype=I64),
                draft_ids=torch.zeros(2, dtype=I64),
            )

    def test_a_position_beyond_the_block_table(self):
        with pytest.raises(
            ValueError, match=re.escape("slot_mapping: positions[0] is 64, allowed are 0 to 63")
        ):
            self.kernels.slot_mapping(
                torch.tensor([64]),
                torch.zeros(1, dtype=I32),
                torch.tensor([65], dtype=I32),
                torch.zeros(1, 1, dtype=I32),
                out=torch.zeros(1, dtype=I64),
            )

    def test_tokens_beyond_the_longest_request(self):
        state = torch.tensor([8])
        with pytest.raises(ValueError, match="post_update: total_len after the step"):
            self.kernels.post_update(
                torch.tensor([0], dtype=I32),
                torch.tensor([0, 1], dtype=I32),
                torch.tensor([0, 1], dtype=I32),
                torch.tensor([[3]]),
                torch.tensor([1], dtype=I32),
                computed=state.clone(),
                total_len=state.clone(),
                token_ids=torch.zeros(1, 8, dtype=I32),
            )
