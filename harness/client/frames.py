"""Pickled messages over a socket pair, in the framing of `multiprocessing.connection`.

Unlike `Connection`, sending never blocks on an engine that is itself blocked on sending: what arrives
meanwhile is read and kept. Every message carries the time at which it was read, taken before it is unpickled.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from collections import deque
from typing import Any

_READ_SIZE = 1 << 20
_SMALL = struct.Struct("!i")
_LARGE = struct.Struct("!Q")
_LARGEST_SMALL = 0x7FFFFFFF


_LARGEST = 1 << 34  # bytes of one message; more is no message but noise


class SendTimeout(Exception):
    """The other side did not take a message in time."""


class UnreadableFrame(Exception):
    """What arrived is no message of the protocol; nothing after it can be told apart any more."""


class FrameSocket:
    """One end of a socket pair. `closed` is true once the other end is gone and everything was read."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._buffer = bytearray()
        self._frames: deque[tuple[int, bytes]] = deque()
        self._ended = False
        self._noise = ""  # why what arrives cannot be read any more
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._either = select.poll()
        self._either.register(sock, select.POLLIN | select.POLLOUT)

    @property
    def closed(self) -> bool:
        return self._ended and not self._frames

    @property
    def _deaf(self) -> bool:
        return self._ended or bool(self._noise)

    def send(self, message: object, timeout_s: float) -> None:
        """Send one message, reading meanwhile. Raises SendTimeout; a lost peer shows when reading."""
        payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        left = memoryview(_header(len(payload)) + payload)
        deadline = time.monotonic() + timeout_s
        while left and not self._deaf:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise SendTimeout(f"a message of {len(payload)} bytes was not taken within {timeout_s:g} s")
            ready = self._either.poll(remaining * 1000)
            mask = ready[0][1] if ready else 0
            if mask & ~select.POLLOUT:
                self._read()
            if mask & select.POLLOUT:
                left = left[self._write(left) :]

    def receive(self, timeout_s: float) -> list[tuple[int, Any]]:
        """Every message that is there, with its read time; waits up to `timeout_s` for the first.

        Raises UnreadableFrame, after which the rest of the stream is lost.
        """
        if not self._frames and not self._deaf and self._readable.poll(max(0.0, timeout_s) * 1000):
            self._read()
        while not self._deaf and self._readable.poll(0):
            self._read()
        messages: list[tuple[int, Any]] = []
        while self._frames:
            time_ns, payload = self._frames.popleft()
            try:
                messages.append((time_ns, pickle.loads(payload)))
            except Exception as error:  # noqa: BLE001 - unpickling noise can raise anything; it is said below
                self._noise = f"a message cannot be unpickled ({type(error).__name__}: {error})"
                self._frames.clear()
        if self._noise and not messages:
            raise UnreadableFrame(self._noise)
        return messages

    def close(self) -> None:
        self._ended = True
        self._socket.close()

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            self._ended = True
            return 0

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        now = time.perf_counter_ns()
        if not data:
            self._ended = True
            return
        self._buffer += data
        self._split(now)

    def _split(self, now: int) -> None:
        """Move complete frames out of the buffer."""
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _SMALL.size:
            (size,) = _SMALL.unpack_from(buffer, start)
            body = start + _SMALL.size
            if size == -1:
                if len(buffer) - body < _LARGE.size:
                    break
                (size,) = _LARGE.unpack_from(buffer, body)
                body += _LARGE.size
            if not 0 <= size <= _LARGEST:
                self._noise = f"a message announces {size} bytes"
                break
            if len(buffer) - body < size:
                break
            self._frames.append((now, bytes(buffer[body : body + size])))
            start = body + size
        del buffer[:start]


def _header(size: int) -> bytes:
    if size <= _LARGEST_SMALL:
        return _SMALL.pack(size)
    return _SMALL.pack(-1) + _LARGE.pack(size)
