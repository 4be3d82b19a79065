"""Sampling parameters of V1's rows on the device, sent again only when they may have changed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from paths.engine.host_memory import HostStaging
from paths.engine.requests import RequestTable
from paths.engine.sampler import SamplingInputs
from paths.generic_mrv1.input_batch import InputBatch


class SamplingBuffers:
    """One entry per logits row. Greedy steps read none of them and send none."""

    def __init__(self, table: RequestTable, staging: HostStaging, device: torch.device) -> None:
        size = len(table.live)
        self._staging = staging
        self._temperature = torch.zeros(size, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(size, dtype=torch.int32, device=device)
        self._top_p = torch.ones(size, dtype=torch.float32, device=device)
        self._seeds = torch.zeros(size, dtype=torch.int64, device=device)
        self._positions = torch.zeros(size, dtype=torch.int64, device=device)
        self._sent: tuple[int, bytes] | None = None  # version of the batch, and its rows

    def inputs(
        self, batch: InputBatch, rows: npt.NDArray[np.int32], *, positions: npt.NDArray[np.int32]
    ) -> SamplingInputs:
        """rows `[N]` of the batch; positions `[N]` of the tokens that they will get."""
        count = len(rows)
        all_greedy = not batch.temperature[rows].any()
        if not all_greedy:
            self._send(batch, rows)
            self._staging.send("positions_of_samples", positions, self._positions)
        return SamplingInputs(
            temperature=self._temperature[:count],
            top_k=self._top_k[:count],
            top_p=self._top_p[:count],
            seeds=self._seeds[:count],
            positions=self._positions[:count],
            all_greedy=all_greedy,
        )

    def _send(self, batch: InputBatch, rows: npt.NDArray[np.int32]) -> None:
        key = (batch.version, rows.tobytes())
        if key == self._sent:
            return
        self._staging.send("temperature", batch.temperature[rows], self._temperature)
        self._staging.send("top_k", batch.top_k[rows], self._top_k)
        self._staging.send("top_p", batch.top_p[rows], self._top_p)
        self._staging.send("seeds", batch.seeds[rows], self._seeds)
        self._sent = key
