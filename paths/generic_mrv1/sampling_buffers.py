"""Sampling parameters of V1's rows on the device, sent again only when they may have changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from paths.engine.host_memory import HostStaging
from paths.engine.requests import RequestTable
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan
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
        self._mtp = mtp
        self._needs_seeds = needs_seeds
        self._staging = staging
        self._temperature = torch.zeros(size, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(size, dtype=torch.int32, device=device)
        self._top_p = torch.ones(size, dtype=torch.float32, device=device)
        self._seeds = torch.zeros(size, dtype=torch.int64, device=device)
        self._positions = torch.zeros(size * (1 + mtp), dtype=torch.int64, device=device)
        self._entries = torch.zeros(size * (1 + mtp), dtype=torch.int32, device=device)
        # of steps in which every request has all its drafts; nobody writes them
        self._uniform_entries = self._entries.new_tensor(range(size)).repeat_interleave(1 + mtp)
        self._sent: tuple[int, bytes] | None = None  # version of the batch, and its rows
        self._sent_entries: bytes | None = None
        self._unread: dict[tuple[int, int, bool], SamplingInputs] = {}  # of greedy steps, by their sizes

    def inputs(
        self, batch: InputBatch, rows: IntArray, *, positions: IntArray, draft: int | None = None
    ) -> SamplingInputs:
        """rows `[N]` of the batch; positions `[N]` of the tokens, or draft tokens, that they will get."""
        count = len(rows)
        if not any(batch.temperature[rows].tolist()):
            return self._greedy(count, count, grouped=False)
        self._send(batch, rows)
        name = "positions_of_samples" if draft is None else f"positions of draft {draft}"
        self._staging.put(name, positions, self._positions)
        return self._views(count, count, all_greedy=False, grouped=False)

    def inputs_of_drafts(self, batch: InputBatch, rows: IntArray, plan: StepPlan) -> SamplingInputs:
        """As `inputs`, for as many logits rows of each request as a plan with drafts wants."""
        num_logits = plan.num_logits
        count, total = len(rows), sum(num_logits.tolist())
        sizes = num_logits.tobytes()
        if sizes != self._sent_entries:
            entries = np.repeat(np.arange(count, dtype=np.int32), num_logits)
            self._staging.put("entries_of_samples", entries, self._entries)
            self._sent_entries = sizes
        all_greedy = not any(batch.temperature[rows].tolist())
        if not all_greedy or self._needs_seeds:
            self._send(batch, rows)
            first = (plan.start + plan.num_tokens)[:count] - num_logits + 1  # behind the first logits row
            starts = np.cumsum(num_logits, dtype=np.int32) - num_logits
            positions = np.repeat(first - starts, num_logits) + np.arange(total, dtype=np.int32)
            self._staging.put("positions_of_samples", positions, self._positions)
        if all_greedy:
            return self._greedy(count, total, grouped=True)
        return self._views(count, total, all_greedy=False, grouped=True)

    def of_uniform_greedy(self, count: int) -> SamplingInputs:
        """Of a greedy step in which each of `count` requests has one row and all its drafts."""
        total = count * (1 + self._mtp)
        views = self._views(count, total, all_greedy=True, grouped=True)
        return replace(views, rows=self._uniform_entries[:total])

    def _greedy(self, count: int, total: int, *, grouped: bool) -> SamplingInputs:
        """Made once per uniform size: six views cost more than what a greedy step does with them."""
        if total not in (count, count * (1 + self._mtp)):
            return self._views(count, total, all_greedy=True, grouped=grouped)
        key = (count, total, grouped)
        if key not in self._unread:
            self._unread[key] = self._views(count, total, all_greedy=True, grouped=grouped)
        return self._unread[key]

    def _views(self, count: int, total: int, *, all_greedy: bool, grouped: bool) -> SamplingInputs:
        return SamplingInputs(
            temperature=self._temperature[:count],
            top_k=self._top_k[:count],
            top_p=self._top_p[:count],
            seeds=self._seeds[:count],
            positions=self._positions[:total],
            all_greedy=all_greedy,
            rows=self._entries[:total] if grouped else None,
        )

    def _send(self, batch: InputBatch, rows: IntArray) -> None:
        key = (batch.version, rows.tobytes())
        if key == self._sent:
            return
        self._staging.put("temperature", batch.temperature[rows], self._temperature)
        self._staging.put("top_k", batch.top_k[rows], self._top_k)
        self._staging.put("top_p", batch.top_p[rows], self._top_p)
        self._staging.put("seeds", batch.seeds[rows], self._seeds)
        self._sent = key
