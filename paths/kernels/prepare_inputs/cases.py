"""Check cases of the preparation ops: ragged steps, empty and padded batch rows, drafts, spare buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart

TOKENS = (0, 1, 63, 64, 65, 100, 111)
MAX_LENGTH = 300
POISON = -(2**30)  # what output buffers hold before the call


class DrawnStep:
    """A step of shuffled slots with a mixture of decodes, verifications, prefills and padding rows."""

    def __init__(
        self,
        generator: torch.Generator,
        device: torch.device,
        *,
        tokens: int,
        rows: int,
        drafts: int,
        slack: int,
    ) -> None:
        self.device, self.drafts = device, drafts
        self.num_slots = rows + 3
        self.rows, self.slack = rows, slack
        order = torch.randperm(self.num_slots, generator=generator)[:rows].int()
        # padding rows stand at the end, and own nothing
        live = max(1, rows - rows // 3) if tokens else 0
        counts = torch.zeros(rows, dtype=torch.int64)
        owners = torch.randint(0, max(live, 1), (tokens,), generator=generator)
        counts += torch.bincount(owners, minlength=rows)[:rows] if tokens else 0
        order[live:] = -1
        wanted = torch.minimum(torch.randint(0, drafts + 2, (rows,), generator=generator), counts)
        computed = torch.randint(0, MAX_LENGTH - tokens - drafts, (self.num_slots,), generator=generator)
        total = torch.zeros(self.num_slots, dtype=torch.int64)
        slot = order[:live].long()
        # the last wanted − 1 inputs of a row are drafts, the ones before are known
        guessed = (wanted - 1).clamp(min=0)
        total[slot] = (computed[slot] + counts[:live] - guessed[:live]).clamp(min=0)
        self.slots = order.to(device)
        self.query_start = _starts(counts).to(device)
        self.logits_start = _starts(wanted).to(device)
        self.tokens, self.wanted = tokens, int(wanted.sum())
        self.computed, self.total_len = computed.to(device), total.to(device)
        history = torch.randint(
            0, 10**6, (self.num_slots, MAX_LENGTH), generator=generator, dtype=torch.int32
        )
        self.token_ids = history.to(device)
        self.draft_tokens = torch.randint(10**6, 10**7, (self.num_slots, drafts), generator=generator).to(
            device
        )
        pages = -(-MAX_LENGTH // PAGE_SIZE)
        blocks = torch.randperm(self.num_slots * pages, generator=generator).int() + 1
        self.block_table = blocks.view(self.num_slots, pages).to(device)
        self.sampled = torch.randint(0, 10**6, (rows, drafts + 1), generator=generator).to(device)
        counts_kept = torch.randint(1, drafts + 2, (rows,), generator=generator)
        self.counts = torch.minimum(counts_kept, wanted).int().to(device)
        filler = torch.arange(drafts + 1, device=device) >= self.counts[:, None]
        self.sampled[filler] = -1

    def buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.full((size,), POISON, dtype=dtype, device=self.device)

    def positions(self) -> dict[str, Tensor]:
        """What prepare_positions gives, by the definition."""
        from paths.kernels.prepare_inputs.reference import prepare_positions

        size = self.tokens + self.slack
        made = {
            "positions": self.buffer(size, torch.int64),
            "req_rows": self.buffer(size, torch.int32),
            "lengths": self.buffer(size, torch.int32),
            "seq_lens": self.buffer(self.rows, torch.int32),
        }
        prepare_positions(self.slots, self.query_start, self.computed, **made)
        return made


def check_cases() -> list[Case]:
    cases = [
        Case(
            f"{function}/{tokens} tokens, {rows} rows, {drafts} drafts, {slack} spare",
            partial(_make, build=build, tokens=tokens, rows=rows, drafts=drafts, slack=slack),
        )
        for function, build in _BUILDERS.items()
        for tokens, rows, drafts, slack in zip(
            TOKENS, (0, 1, 5, 16, 65, 33, 7), (0, 0, 3, 0, 1, 5, 2), (0, 2, 1, 0, 300, 28, 7), strict=True
        )
    ]
    wide = [
        Case(
            f"{function}/production: 8192 tokens, 256 rows",
            partial(_make_wide, build=build),
            slow=True,
        )
        for function, build in _BUILDERS.items()
    ]
    gathers = [
        Case(
            f"gather_rows/{rows} rows of {width}, {name}",
            partial(_gather, rows=rows, width=width, dtype=dtype),
        )
        for rows, width in zip(TOKENS, (7, 1, 256, 100, 33, 1025, 64), strict=True)
        for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16))
    ]
    far = Case(
        "gather_rows/row offsets beyond 32 bits",
        partial(_gather, rows=20, width=30, dtype=torch.bfloat16, far_apart=True),
    )
    return [far, *cases, *gathers, *wide]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    build: Callable[[DrawnStep], Call],
    tokens: int,
    rows: int,
    drafts: int,
    slack: int,
) -> Call:
    return build(DrawnStep(generator, device, tokens=tokens, rows=rows, drafts=drafts, slack=slack))


def _make_wide(
    generator: torch.Generator, device: torch.device, *, build: Callable[[DrawnStep], Call]
) -> Call:
    """As many rows and buffers as a server has; few live tokens, so that the definition stays quick."""
    return build(DrawnStep(generator, device, tokens=200, rows=256, drafts=3, slack=8192 - 200))


def _prepare_positions(step: DrawnStep) -> Call:
    size = step.tokens + step.slack
    buffers = {
        "positions": step.buffer(size, torch.int64),
        "req_rows": step.buffer(size, torch.int32),
        "lengths": step.buffer(size, torch.int32),
        "seq_lens": step.buffer(step.rows, torch.int32),
    }
    return _call("prepare_positions", (step.slots, step.query_start, step.computed), buffers, buffers)


def _combine_tokens(step: DrawnStep) -> Call:
    positions = step.positions()["positions"]
    wanted = step.wanted + step.slack
    buffers = {
        "input_ids": step.buffer(len(positions), torch.int64),
        "logits_rows": step.buffer(wanted, torch.int64),
        "logits_slots": step.buffer(wanted, torch.int32),
        "next_positions": step.buffer(wanted, torch.int64),
        "draft_ids": step.buffer(wanted, torch.int64),
    }
    inputs = (
        step.slots,
        step.query_start,
        step.logits_start,
        positions,
        step.token_ids,
        step.total_len,
        step.draft_tokens,
    )
    return _call("combine_tokens", inputs, buffers, buffers)


def _gather_block_table(step: DrawnStep) -> Call:
    out = {"out": torch.full((step.rows, step.block_table.shape[1]), POISON, dtype=torch.int32)}
    out = {name: tensor.to(step.device) for name, tensor in out.items()}
    return _call("gather_block_table", (step.slots, step.block_table), out, out)


def _slot_mapping(step: DrawnStep) -> Call:
    made = step.positions()
    table = step.block_table[step.slots.long().clamp(min=0)]
    out = {"out": step.buffer(len(made["positions"]), torch.int64)}
    # the position of a padding token is not to be trusted
    made["positions"][made["lengths"] == 0] = POISON
    return _call("slot_mapping", (made["positions"], made["req_rows"], made["lengths"], table), out, out)


def _post_update(step: DrawnStep) -> Call:
    inputs = (step.slots, step.query_start, step.logits_start, step.sampled, step.counts)
    state = {"computed": step.computed, "total_len": step.total_len, "token_ids": step.token_ids}
    return _call("post_update", inputs, state, state)


def _gather(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    far_apart: bool = False,
) -> Call:
    source = 4 if far_apart else 50
    x = randn(generator, source, width + 3, device=device, dtype=dtype)[:, :width]
    if far_apart:
        x = rows_far_apart(source, width, dtype, device).copy_(x)
    at = torch.randint(0, source, (rows,), generator=generator).to(device)
    return Call((x, at), {}, lambda out: {"rows": out}, {"rows": exact()}, function="gather_rows")


def _call(
    function: str, inputs: tuple[Tensor, ...], kwargs: dict[str, Tensor], written: dict[str, Tensor]
) -> Call:
    def outputs(_: Any) -> dict[str, Tensor]:
        return written

    return Call(inputs, kwargs, outputs, dict.fromkeys(written, exact()), function=function)


def _starts(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()


_BUILDERS: dict[str, Callable[[DrawnStep], Call]] = {
    "prepare_positions": _prepare_positions,
    "combine_tokens": _combine_tokens,
    "gather_block_table": _gather_block_table,
    "slot_mapping": _slot_mapping,
    "post_update": _post_update,
}
