"""What of the preparation of drafts is compiled ahead of time: production shapes, and every check case."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.prepare_drafts import triton_impl
from paths.kernels.prepare_drafts.cases import check_cases
from paths.kernels.prepare_inputs.compile import MODELS, SLOTS, TOKENS


def compile_specs() -> list[CompileSpec]:
    specs: list[CompileSpec] = []
    for model, (_, length, drafts) in MODELS.items():
        longs, tokens = _meta(SLOTS, dtype=torch.int64), _meta(TOKENS, dtype=torch.int64)
        shift = partial(
            triton_impl.shift_tokens,
            _meta(SLOTS),
            _meta(SLOTS + 1),
            _meta(SLOTS + 1),
            _meta(SLOTS),
            tokens,
            _meta(SLOTS, length),
            input_ids=tokens,
            lengths=_meta(TOKENS),
            slot_mapping=tokens,
            draft_slots=_meta(SLOTS),
            last_rows=longs,
            last_positions=longs,
            last_lengths=_meta(SLOTS),
        )
        advance = partial(
            triton_impl.advance_drafts,
            longs,
            _meta(SLOTS),
            longs,
            longs,
            _meta(SLOTS, length // PAGE_SIZE),
            step=drafts - 1,
            draft_tokens=_meta(SLOTS, drafts, dtype=torch.int64),
            input_ids=longs,
            positions=longs,
            lengths=_meta(SLOTS),
            slot_mapping=longs,
            req_rows=_meta(SLOTS),
        )
        specs += traced("prepare_drafts", f"{model}, draft 0", shift)
        specs += traced("prepare_drafts", f"{model}, later drafts", advance)
    cases = check_cases()
    for name in sorted({case.group for case in cases}):
        function = getattr(triton_impl, name)
        specs += of_cases("prepare_drafts", function, [case for case in cases if case.group == name])
    return specs


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)
