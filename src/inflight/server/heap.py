"""Memory that was freed goes back to the system. The C library keeps it otherwise: holes between what is still used.

Knows the process's size and the C library; nothing of what was freed. Freeing does not show in the size, so what is
free is given back every few seconds while the process works and is larger than it was at its smallest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 2.0
SELDOM_SECONDS = 8.0  # between two times that bring nothing
WORKED_SECONDS = 0.01  # of computing since the last time; an idle process frees nothing
GROWN_BYTES = 8 << 20  # beyond its smallest size; less is not worth it
LITTLE_BYTES = 1 << 20

Size = Callable[[], int]
Trim = Callable[[int], object]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def c_library_trim() -> Trim | None:
    """None where the C library, or the system, has another way."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None  # lets go of the lock meanwhile
    return None


async def give_back(size: Size = resident_bytes, trim: Trim | None = None, look: float = LOOK_SECONDS) -> None:
    """Until it is cancelled; returns where there is no way to. look: seconds between two looks at the size."""
    trim = trim or c_library_trim()
    if trim is None:
        return
    least, wait, waited, worked = size(), look, 0.0, time.process_time()
    while True:
        await asyncio.sleep(look)
        waited += look
        before = size()
        least = min(least, before)
        if before - least < GROWN_BYTES or waited < wait or time.process_time() - worked < WORKED_SECONDS:
            continue
        await asyncio.to_thread(trim, 0)
        waited, worked = 0.0, time.process_time()
        wait = look if before - size() > LITTLE_BYTES else min(2 * wait, SELDOM_SECONDS)
