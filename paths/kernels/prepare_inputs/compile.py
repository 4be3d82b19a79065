"""What of the preparation is compiled ahead of time: production shapes, and every check case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.prepare_inputs import triton_impl
from paths.kernels.prepare_inputs.cases import check_cases

SLOTS, TOKENS, LOGITS = 256, 8192, 1024
# model → hidden size, longest request, drafts
MODELS = {"V3.2": (7168, 163840, 3), "GLM-5.2": (6144, 202752, 5)}


def compile_specs() -> list[CompileSpec]:
    specs = [
        spec
        for model, (hidden, length, drafts) in MODELS.items()
        for label, run in _calls(hidden, length, drafts)
        for spec in traced("prepare_inputs", f"{model}, {label}", run)
    ]
    cases = check_cases()
    for name in sorted({case.group for case in cases}):
        function = getattr(triton_impl, name)
        specs += of_cases("prepare_inputs", function, [case for case in cases if case.group == name])
    return specs


def _calls(hidden: int, length: int, drafts: int) -> Iterator[tuple[str, Callable[[], object]]]:
    pages = length // PAGE_SIZE
    slots, starts = _meta(SLOTS), _meta(SLOTS + 1)
    state, token_ids = _meta(SLOTS, dtype=torch.int64), _meta(SLOTS, length)
    tokens, wanted = _meta(TOKENS, dtype=torch.int64), _meta(LOGITS, dtype=torch.int64)
    yield (
        "positions",
        partial(
            triton_impl.prepare_positions,
            slots,
            starts,
            state,
            positions=tokens,
            req_rows=_meta(TOKENS),
            lengths=_meta(TOKENS),
            seq_lens=slots,
        ),
    )
    for number in (0, drafts):
        yield (
            f"tokens, {number} drafts",
            partial(
                triton_impl.combine_tokens,
                slots,
                starts,
                starts,
                tokens,
                token_ids,
                state,
                _meta(SLOTS, number, dtype=torch.int64),
                input_ids=tokens,
                logits_rows=wanted,
                logits_slots=_meta(LOGITS),
                next_positions=wanted,
                draft_ids=wanted,
            ),
        )
        yield (
            f"update, {number} drafts",
            partial(
                triton_impl.post_update,
                slots,
                starts,
                starts,
                _meta(SLOTS, number + 1, dtype=torch.int64),
                slots,
                computed=state,
                total_len=state,
                token_ids=token_ids,
            ),
        )
    table = _meta(SLOTS, pages)
    yield "block table", partial(triton_impl.gather_block_table, slots, table, out=table)
    mapping = partial(triton_impl.slot_mapping, tokens, _meta(TOKENS), _meta(TOKENS), table, out=tokens)
    yield "slots", mapping
    rows = partial(triton_impl.gather_rows, _meta(TOKENS, hidden, dtype=torch.bfloat16), wanted)
    yield "rows", rows


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)
