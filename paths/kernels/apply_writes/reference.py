"""The definition of apply_writes."""

from __future__ import annotations

from torch import Tensor


def apply_writes(state: Tensor, writes: Tensor, values: Tensor, *, longest: int) -> None:
    """Row (to, first, count) of writes int32 `[M, 3]` copies values[first : first + count] to state[to :].

    state int32 `[N]`, values int32 `[W]`. A negative `to` does nothing; writes do not overlap. longest: the
    largest count, known on the host.
    """
    for to, first, count in writes.tolist():
        assert count <= longest, f"a write of {count} words, longest is {longest}"
        if to >= 0:
            state[to : to + count] = values[first : first + count]
