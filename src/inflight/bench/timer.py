"""Wake an event loop at an exact moment.

Event loops time by the millisecond, which is coarse for a load client's schedule, and polling the clock takes a core
that the server may need. Linux has timers as file descriptors (timerfd_create(2)); Python's `os` has them from 3.13 on,
so the C library is called here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import struct
import sys
import time
from collections.abc import Callable

_MONOTONIC, _ABSOLUTE = 1, 1  # CLOCK_MONOTONIC, which is time.perf_counter's; TFD_TIMER_ABSTIME


class Timer:
    """A timer for one moment at a time; setting it again replaces the moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]):
        self._loop, self._ring = loop, ring
        self._handle: asyncio.Handle | None = None
        self._file = _timer_file()
        if self._file >= 0:
            loop.add_reader(self._file, self._rung)

    def set(self, moment: float) -> None:
        """Set the moment on time.perf_counter; a past one rings in the next turn of the loop."""
        if self._handle is not None:
            self.clear()
        left = moment - time.perf_counter()
        if left <= 0.0:
            self._handle = self._loop.call_soon(self._ring)
        elif self._file < 0:
            self._handle = self._loop.call_later(left, self._ring)
        else:
            _set(self._file, moment)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._file >= 0:
            _set(self._file, 0.0)

    def close(self) -> None:
        self.clear()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set again since
            os.read(self._file, 8)
            self._ring()


def _timer_file() -> int:
    """Return a timer's file descriptor; -1 where the system has none."""
    if sys.platform != "linux":
        return -1
    return int(_library().timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))


def _set(file: int, moment: float) -> None:
    """Set a timer's moment; 0: never."""
    seconds = int(moment)
    value = struct.pack("4l", 0, 0, seconds, int((moment - seconds) * 1e9))  # struct itimerspec: interval, value
    _library().timerfd_settime(file, _ABSOLUTE, value, None)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
