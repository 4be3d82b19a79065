"""What an engine ran for one cell, out of reports that count since its start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paths.api import Effective


def effective_of_cell(before: Effective, after: Effective) -> Effective:
    """`after`, with the steps and kernel calls that were made since `before`.

    Start-up and earlier cells of the launch prove nothing about this one. Implementations that were not
    called again stay in the list with 0.
    """
    return replace(
        after,
        graph_modes=_difference(before.graph_modes, after.graph_modes),
        draft_modes=_difference(before.draft_modes, after.draft_modes),
        kernels={op: _difference(before.kernels.get(op, {}), calls) for op, calls in after.kernels.items()},
    )


def without_counts(effective: Effective) -> Effective:
    """For a cell whose load did not end: what the engine is, and no claim about what it ran."""
    return replace(effective, graph_modes={}, draft_modes={}, kernels={})


def _difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: total - before.get(name, 0) for name, total in after.items()}
