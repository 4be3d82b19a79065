"""Sampling parameters of V1's rows on the device, sent again only when they may have changed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from paths.engine.host_memory import HostStaging
from paths.engine.requests import RequestTable
from paths.engine.sampler import SamplingInputs
from paths.generic_mrv1.input_batch import InputBatch

IntArray = npt.NDArray[np.int32]


class SamplingBuffers:
    """One entry per request that yields tokens. Greedy steps read none of them and send none.

    mtp: most drafts of a request. needs_seeds: whether greedy steps need parameters, too.
    """

    def __init__(
        self,
        table: RequestTable,
        staging: HostStaging,
        device: torch.device,
        *,
        mtp: int = 0,
        needs_seeds: bool = False,
    ) -> None:
        size = len(table.live)
        self._needs_seeds = needs_seeds
        self._staging = staging
        self._temperature = torch.zeros(size, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(size, dtype=torch.int32, device=device)
        self._top_p = torch.ones(size, dtype=torch.float32, device=device)
        self._seeds = torch.zeros(size, dtype=torch.int64, device=device)
        self._positions = torch.zeros(size * (1 + mtp), dtype=torch.int64, device=device)
        self._entries = torch.zeros(size * (1 + mtp), dtype=torch.int32, device=device)
        self._sent: tuple[int, bytes] | None = None  # version of the batch, and its rows

    def inputs(
        self, batch: InputBatch, rows: IntArray, *, positions: IntArray, draft: int | None = None
    ) -> SamplingInputs:
        """rows `[N]` of the batch; positions `[N]` of the tokens, or draft tokens, that they will get."""
        count = len(rows)
        all_greedy = not batch.temperature[rows].any()
        if not all_greedy:
            self._send(batch, rows)
            name = "positions_of_samples" if draft is None else f"positions of draft {draft}"
            self._staging.send(name, positions, self._positions)
        return SamplingInputs(
            temperature=self._temperature[:count],
            top_k=self._top_k[:count],
            top_p=self._top_p[:count],
            seeds=self._seeds[:count],
            positions=self._positions[:count],
            all_greedy=all_greedy,
        )

    def inputs_of_drafts(
        self, batch: InputBatch, rows: IntArray, *, positions: IntArray, num_logits: IntArray
    ) -> SamplingInputs:
        """As `inputs`, for num_logits `[N]` logits rows of each request; positions `[L]`."""
        count, total = len(rows), len(positions)
        all_greedy = not batch.temperature[rows].any()
        if not all_greedy or self._needs_seeds:
            self._send(batch, rows)
            self._staging.send("positions_of_samples", positions, self._positions)
        entries = np.repeat(np.arange(count, dtype=np.int32), num_logits)
        return SamplingInputs(
            temperature=self._temperature[:count],
            top_k=self._top_k[:count],
            top_p=self._top_p[:count],
            seeds=self._seeds[:count],
            positions=self._positions[:total],
            all_greedy=all_greedy,
            rows=self._staging.send("entries_of_samples", entries, self._entries),
        )

    def _send(self, batch: InputBatch, rows: IntArray) -> None:
        key = (batch.version, rows.tobytes())
        if key == self._sent:
            return
        self._staging.send("temperature", batch.temperature[rows], self._temperature)
        self._staging.send("top_k", batch.top_k[rows], self._top_k)
        self._staging.send("top_p", batch.top_p[rows], self._top_p)
        self._staging.send("seeds", batch.seeds[rows], self._seeds)
        self._sent = key
