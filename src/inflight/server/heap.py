"""Memory that is not used any more goes back to the system.

The C library keeps what was freed otherwise: holes between what is still used. And Python's collector would look
through its oldest generation whenever connections come by the hundred, which takes a tenth of a second with thousands
of them open, finds next to nothing, and lets everybody wait. So what is there when the server is ready is taken out of
its sight, and the oldest generation is looked through here only, for a small share of the time.

Knows the process's size, the collector and the C library; nothing of what was freed. Freeing does not show in the size,
so memory is given back every few seconds while the process works and is larger than it was at its smallest.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_SECONDS = 2.0
SELDOM_SECONDS = 8.0  # between two times that bring nothing
WORKED_SECONDS = 0.01  # of computing since the last time; an idle process frees nothing
GROWN_BYTES = 8 << 20  # beyond its smallest size; less is not worth it
LITTLE_BYTES = 1 << 20
COLLECTING = 0.0005  # share of the time for the oldest generation
COLLECT_SECONDS = 30.0  # between two looks at it, at least
OBJECT_SECONDS = 7e-7  # that a look takes for each object of it, alive or not
_NEVER = 1 << 30
# Objects until the youngest are looked through, and such looks until those that lived through one are: a step makes
# thousands that it gives up itself, and few looks at them find anything.
_YOUNG = (5_000, 2)
_ARENA_MAX = -8  # glibc's number of that setting

Size = Callable[[], int]
Trim = Callable[[int], object]


def resident_bytes() -> int:
    """Return the memory of this process; 0 where the system has no such file."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def share_one_heap() -> None:
    """All threads allocate from one heap. By itself the C library gives each its own of up to 64 MiB, and what is free
    at the end of those is not given back. To be called before there are threads; Python's lock lets few of them
    allocate at once."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        if sys.platform == "linux":
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def c_library_trim() -> Trim | None:
    """None where the C library, or the system, has another way."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None  # lets go of the lock meanwhile
    return None


class _Collector:
    """Looks for garbage in the oldest generation. What is alive is looked at too: while that is much, as with a large
    answer or thousands of connections, it waits, for everybody would wait for it."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def collect(self) -> None:
        since = time.monotonic() - self._last
        if since >= COLLECT_SECONDS and len(gc.get_objects(2)) * OBJECT_SECONDS <= COLLECTING * since:
            gc.collect()
            self._last = time.monotonic()


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Keep what there is now: the collector looks at it no more, and at what will have grown old only when asked."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_YOUNG, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()  # or the engine, whose parts refer to each other, would outlive the interpreter


async def give_back(size: Size = resident_bytes, trim: Trim | None = None, look: float = LOOK_SECONDS) -> None:
    """Until it is cancelled, in the thread whose objects may be of use to it alone. look: seconds between two looks at
    the size."""
    trim, collector = trim or c_library_trim(), _Collector()
    least = last = size()
    wait, waited, worked = look, 0.0, time.process_time()
    while True:
        await asyncio.sleep(look)
        waited += look
        before = size()
        least = min(least, before)
        soon = waited < wait and before - last < GROWN_BYTES  # what has come since will be let go of, too
        if before - least < GROWN_BYTES or soon or time.process_time() - worked < WORKED_SECONDS:
            continue
        collector.collect()
        if trim is not None:
            await asyncio.to_thread(trim, 0)
        last, waited, worked = size(), 0.0, time.process_time()
        wait = look if before - last > LITTLE_BYTES else min(2 * wait, SELDOM_SECONDS)
