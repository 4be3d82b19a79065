"""Host memory that a runner sends from and reads into, and its own count of what moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGN = 4  # words: kernels are compiled for pointers to multiples of 16 bytes
_MOST_LAYOUTS = 1024  # of a buffer that are remembered
IntArray = npt.NDArray[np.int32]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(kw_only=True)
class TransferCounts:
    """Named as in `paths.api.Counters`."""

    host_device_copies: int = 0
    blocking_waits: int = 0
    output_waits: int = 0


class HostStaging:
    """V1's host side of its input tensors: one pinned copy of each, so a step may have to wait for the last.

    On a CPU nothing is staged: the arrays are copied to where they are read.
    """

    def __init__(self, device: torch.device, counts: TransferCounts) -> None:
        self._device = device
        self._accelerator = device.type != "cpu"
        self._counts = counts
        self._pinned: dict[str, Tensor] = {}
        # of a tensor, by its id and the number of rows; kept with it, or its id became another's
        self._first_rows: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._copied: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Wait until the copies of the step before have left the pinned memory."""
        if self._copied is not None and not self._copied.query():
            self._copied.synchronize()
            self._counts.blocking_waits += 1

    def send(self, name: str, values: np.ndarray, out: Tensor) -> Tensor:
        """Copy values `[n, ...]` into the first n rows of `out`, which are returned."""
        self.put(name, values, out)
        return self.rows(out, len(values))

    def put(self, name: str, values: np.ndarray, out: Tensor) -> None:
        """As `send`, for who reads `out` by itself."""
        self._counts.host_device_copies += 1
        if not self._accelerator:
            self.rows(out, len(values)).copy_(torch.from_numpy(values))
            return
        pinned = self._pinned.get(name)
        if pinned is None:
            pinned = self._pinned[name] = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        pinned.numpy()[: len(values)] = values
        out[: len(values)].copy_(pinned[: len(values)], non_blocking=True)

    def rows(self, out: Tensor, count: int) -> Tensor:
        """The first rows of `out`, made once: a view costs as much as the copy."""
        key = (id(out), count)
        found = self._first_rows.get(key)
        if found is None:
            if len(self._first_rows) == _MOST_LAYOUTS:
                self._first_rows.clear()
            found = self._first_rows[key] = (out, out[:count])
        return found[1]

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

    def read_both(self, table: Tensor, column: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """table `[N, K]` and column `[N]` of integers, in one copy."""
        if self._accelerator:
            joined = self.read(torch.cat([table, column[:, None]], dim=1))
            return joined[:, :-1], joined[:, -1]
        return self.read(table), column.numpy()


class HostRing:
    """V2's host side: as many buffers as steps may be in flight, used in turn, one copy per step.

    A buffer is written again only when the step that was sent from it has been read, so nothing waits.
    On a CPU the ring itself is what the ops read.
    """

    def __init__(self, device: torch.device, *, depth: int, counts: TransferCounts) -> None:
        self._device = device
        self._counts = counts
        self._buffers = [_RingBuffer(1024, pinned=device.type != "cpu") for _ in range(depth)]
        self._turn = 0

    def send(self, parts: Sequence[IntArray]) -> Sequence[Tensor]:
        """The int32 arrays as tensors on the device, each at a multiple of 16 bytes."""
        shapes = tuple([part.shape for part in parts])
        self._turn = (self._turn + 1) % len(self._buffers)
        layout = self._buffers[self._turn].layouts.get(shapes)
        if layout is None:
            layout = self._lay_out(shapes)
        for place, part in zip(layout.places, parts, strict=True):
            place[...] = part
        self._counts.host_device_copies += 1
        if layout.pinned is None:
            sent = torch.from_numpy(layout.words)  # in every step: the audit of transfers sees this call
        else:
            sent = layout.pinned.to(self._device, non_blocking=True)
        return [
            sent[start : start + place.size].view(place.shape)
            for place, start in zip(layout.places, layout.starts, strict=True)
        ]

    def _lay_out(self, shapes: Shapes) -> _Layout:
        buffer = self._buffers[self._turn]
        starts = [0]
        for shape in shapes:
            starts.append(starts[-1] + -(-math.prod(shape) // _ALIGN) * _ALIGN)
        if len(buffer.words) < starts[-1]:
            buffer = _RingBuffer(2 * starts[-1], pinned=buffer.pinned is not None)
            self._buffers[self._turn] = buffer
        if len(buffer.layouts) == _MOST_LAYOUTS:
            buffer.layouts.clear()
        places = [
            buffer.words[start : start + math.prod(shape)].reshape(shape)
            for shape, start in zip(shapes, starts, strict=False)
        ]
        layout = buffer.layouts[shapes] = _Layout(
            places=places,
            words=buffer.words[: starts[-1]],
            starts=starts[:-1],
            pinned=None if buffer.pinned is None else buffer.pinned[: starts[-1]],
        )
        return layout


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where parts of given shapes stand in a buffer; steps of one kind are laid out once."""

    places: list[IntArray]
    words: IntArray  # all of them
    starts: list[int]
    pinned: Tensor | None  # the same memory, where it is sent from


class _RingBuffer:
    def __init__(self, words: int, *, pinned: bool) -> None:
        self.pinned = torch.zeros(words, dtype=torch.int32, pin_memory=True) if pinned else None
        self.words: IntArray = np.zeros(words, dtype=np.int32) if self.pinned is None else self.pinned.numpy()
        self.layouts: dict[Shapes, _Layout] = {}
