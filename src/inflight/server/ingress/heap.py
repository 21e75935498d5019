"""Memory that was freed goes back to the system. The C library keeps it otherwise: holes between what is still used."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable

_AFTER_SECONDS = 1.0  # what was freed together is given back together


class Heap:
    """Called in the event loop's thread."""

    def __init__(self) -> None:
        self._waiting = False
        self._trim: Callable[[int], int] | None = None
        with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries have ways of their own
            self._trim = ctypes.CDLL(None).malloc_trim  # lets go of the interpreter's lock meanwhile

    def trim_soon(self) -> None:
        if self._trim is not None and not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().call_later(_AFTER_SECONDS, self._begin)

    def _begin(self) -> None:
        self._waiting = False
        if self._trim is not None:
            asyncio.get_running_loop().run_in_executor(None, self._trim, 0)
