"""mask_tokens on Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "mask_tokens"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 128})


@triton.jit(do_not_specialize=("entries",))  # changes with every step: to compile anew would stall it
def mask_tokens_kernel(
    logits_ptr,  # [N, V] float32
    rows_ptr,  # [M] int32
    tokens_ptr,  # [M] int32
    stride,
    entries,
    BLOCK: tl.constexpr,
):
    """BLOCK entries; equal ones write the same value."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows_ptr + entry, mask=entry < entries, other=-1)
    token = tl.load(tokens_ptr + entry, mask=entry < entries, other=-1)
    at = logits_ptr + row.to(tl.int64) * stride + token
    tl.store(at, float("-inf"), mask=(row >= 0) & (token >= 0))


def mask_tokens(logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """logits float32 `[N, V]`, rows and tokens int32 `[M]`; logits[rows[i], tokens[i]] become −inf.

    Memory-bound: an entry (8 bytes) is read once and a logit (4 bytes) written once. Raises ValueError.
    """
    check_tensor(OP, "logits", logits, dtype=torch.float32, shape=(None, None))
    check_tensor(OP, "rows", rows, dtype=torch.int32, shape=(None,))
    check_tensor(OP, "tokens", tokens, dtype=torch.int32, shape=rows.shape)
    entries = len(rows)
    launch(
        mask_tokens_kernel,
        lambda c: (triton.cdiv(entries, c["BLOCK"]),),
        logits,
        rows,
        tokens,
        logits.stride(0),
        entries,
        config=TILES,
    )


def compile_specs() -> list[CompileSpec]:
    """Logits of both models; and all that the checks run."""
    from paths.kernels.mask_tokens.cases import check_cases

    entries = torch.empty(64, dtype=torch.int32, device=META)
    specs = []
    for model, width in (("v32", 129280), ("glm52", 154880)):
        call = partial(mask_tokens, torch.empty(256, width, device=META), entries, entries)
        specs += traced(OP, model, call)
    return [*specs, *of_cases(OP, mask_tokens, check_cases())]
