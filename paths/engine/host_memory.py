"""Host memory that a runner sends from and reads into, and its own count of what moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGN = 4  # words: kernels are compiled for pointers to multiples of 16 bytes
IntArray = npt.NDArray[np.int32]


@dataclass(kw_only=True)
class TransferCounts:
    """Named as in `paths.api.Counters`."""

    host_device_copies: int = 0
    blocking_waits: int = 0
    output_waits: int = 0


class HostStaging:
    """V1's host side of its input tensors: one pinned copy of each, so a step may have to wait for the last.

    On a CPU nothing is staged: the arrays are copied from where they are.
    """

    def __init__(self, device: torch.device, counts: TransferCounts) -> None:
        self._device = device
        self._accelerator = device.type != "cpu"
        self._counts = counts
        self._pinned: dict[str, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Wait until the copies of the step before have left the pinned memory."""
        if self._copied is not None and not self._copied.query():
            self._copied.synchronize()
            self._counts.blocking_waits += 1

    def send(self, name: str, values: np.ndarray, out: Tensor) -> Tensor:
        """Copy values `[n, ...]` into the first n rows of `out`, which are returned."""
        rows = out[: len(values)]
        self._counts.host_device_copies += 1
        if not self._accelerator:
            return rows.copy_(torch.from_numpy(values))
        pinned = self._pinned.get(name)
        if pinned is None:
            pinned = self._pinned[name] = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        pinned.numpy()[: len(values)] = values
        return rows.copy_(pinned[: len(values)], non_blocking=True)

    def send_once(self, values: np.ndarray) -> Tensor:
        """values on the device, from memory that is not pinned: the device is waited for. For rare things."""
        self._counts.host_device_copies += 1
        if not self._accelerator:
            return torch.from_numpy(values)
        self._counts.blocking_waits += 1
        return torch.from_numpy(values).to(self._device)

    def end(self) -> None:
        """All copies of this step are on their way."""
        if self._accelerator:
            self._copied = self._copied or torch.cuda.Event()
            self._copied.record()

    def read(self, tensor: Tensor) -> np.ndarray:
        """Values on the host; the device is waited for."""
        self._counts.host_device_copies += 1
        self._counts.blocking_waits += 1
        return tensor.cpu().numpy() if self._accelerator else tensor.numpy()


class HostRing:
    """V2's host side: as many buffers as steps may be in flight, used in turn, one copy per step.

    A buffer is written again only when the step that was sent from it has been read, so nothing waits.
    On a CPU the ring itself is what the ops read.
    """

    def __init__(self, device: torch.device, *, depth: int, counts: TransferCounts) -> None:
        self._device = device
        self._pinned = device.type != "cpu"
        self._counts = counts
        self._buffers = [self._allocate(1024) for _ in range(depth)]
        self._turn = 0

    def send(self, parts: Sequence[IntArray]) -> list[Tensor]:
        """The int32 arrays as tensors on the device, each at a multiple of 16 bytes."""
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + -(-part.size // _ALIGN) * _ALIGN)
        self._turn = (self._turn + 1) % len(self._buffers)
        if len(self._buffers[self._turn][0]) < starts[-1]:
            self._buffers[self._turn] = self._allocate(2 * starts[-1])
        words, pinned = self._buffers[self._turn]
        for part, start in zip(parts, starts, strict=False):
            words[start : start + part.size] = part.reshape(-1)
        self._counts.host_device_copies += 1
        if pinned is None:
            sent = torch.from_numpy(words[: starts[-1]])
        else:
            sent = pinned[: starts[-1]].to(self._device, non_blocking=True)
        return [
            sent[start : start + part.size].view(part.shape)
            for part, start in zip(parts, starts, strict=False)
        ]

    def _allocate(self, words: int) -> tuple[IntArray, Tensor | None]:
        if not self._pinned:
            return np.zeros(words, dtype=np.int32), None
        pinned = torch.zeros(words, dtype=torch.int32, pin_memory=True)
        return pinned.numpy(), pinned
