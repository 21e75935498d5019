"""Giving freed memory back: when it is tried, and how often."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from inflight.server import heap
from inflight.server.heap import c_library_trim, give_back, resident_bytes, settled

LOOK = 0.001


class Process:
    """As large as its script says, look after look, each a minute later; trims bring `brings` bytes each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brings: int = 0, works: float = 1.0):
        self.bytes, self.trims, self.looks = 100 << 20, 0, 0
        self._brings, self._works = brings, works
        monkeypatch.setattr(heap, "time", self)
        monkeypatch.setattr(heap, "SELDOM_SECONDS", 4 * LOOK)

    def process_time(self) -> float:
        return self.looks * self._works

    def monotonic(self) -> float:
        return 60.0 * self.looks

    def size(self) -> int:
        self.looks += 1
        return self.bytes

    def trim(self, _: int) -> None:
        self.trims += 1
        self.bytes -= self._brings

    def watched(self, grown: int) -> Process:
        """For a while, after it has grown."""

        async def run() -> None:
            task = asyncio.ensure_future(give_back(self.size, self.trim, LOOK))
            await asyncio.sleep(0)
            self.bytes += grown
            while self.looks < 40:
                await asyncio.sleep(LOOK)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        asyncio.run(run())
        return self


@pytest.fixture
def few_objects() -> Iterator[None]:
    """For the collections that go with trims to look at: not all that other tests of this process have left."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_process_that_has_not_grown_or_does_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Process(monkeypatch).watched(1 << 20).trims == 0
    assert Process(monkeypatch, works=0.0).watched(64 << 20).trims == 0


@pytest.mark.wide
def test_what_brings_nothing_is_tried_seldom_and_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 3 <= Process(monkeypatch).watched(64 << 20).trims <= 12


def test_what_has_come_since_is_let_go_of_at_once(few_objects: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(Process):
        def size(self) -> int:
            self.bytes += heap.GROWN_BYTES
            return super().size()

    calm = Process(monkeypatch).watched(64 << 20).trims
    assert Growing(monkeypatch).watched(64 << 20).trims >= 2 * calm > 0


def test_it_goes_on_until_the_size_is_near_the_smallest(few_objects: None, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, brings=4 << 20).watched(64 << 20)
    assert process.trims == 15 and process.bytes < (100 << 20) + heap.GROWN_BYTES


def test_what_grew_old_is_collected_when_memory_has_grown_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    collections = []
    note = collections.append
    with settled():
        gc.callbacks.append(lambda phase, of: note(of["generation"]))  # type: ignore[arg-type]
        try:
            cycle = Cycle()
            gone = weakref.ref(cycle)
            gc.collect(1)  # it is of the oldest generation now
            del cycle
            young = [[] for _ in range(200_000)]  # many times what makes Python look through that one
            assert 2 not in collections and len(young) == 200_000
            Process(monkeypatch).watched(1 << 20)
            assert 2 not in collections
            Process(monkeypatch).watched(64 << 20)
        finally:
            gc.callbacks.pop()
    assert 2 in collections and gone() is None


def test_a_settled_process_is_as_it_was_afterwards() -> None:
    before = gc.get_threshold()
    with settled():
        assert gc.get_threshold()[2] > 10**9 and gc.get_freeze_count()
    assert gc.get_threshold() == before and not gc.get_freeze_count()


def test_the_more_there_is_to_look_at_the_seldomer_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def collections(minutes: float) -> int:
        """In forty minutes, where a look is worth it after so many."""
        found: list[int] = []
        monkeypatch.setattr(heap.gc, "get_objects", lambda generation: [None] * 1000)
        monkeypatch.setattr(heap.gc, "collect", lambda: found.append(1))
        monkeypatch.setattr(heap, "OBJECT_SECONDS", minutes * 60 * heap.COLLECTING / 1000)
        Process(monkeypatch).watched(64 << 20)
        return len(found)

    assert collections(0) >= 5 and 2 <= collections(12) <= 3 and collections(60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_the_c_library_gives_back_what_was_freed() -> None:
    trim = c_library_trim()
    if trim is None:
        pytest.skip("a C library without malloc_trim")
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    pieces = [libc.malloc(4096) for _ in range(8192)]
    for piece in pieces:
        ctypes.memset(piece, 1, 4096)
    keeps = pieces.pop()  # at the end of the heap, so that nothing goes by itself
    full = resident_bytes()
    for piece in pieces:
        libc.free(piece)
    trim(0)
    deadline = time.monotonic() + 10
    while resident_bytes() > full - (16 << 20) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert resident_bytes() <= full - (16 << 20)
    libc.free(keeps)


# In a thread that stays: blocks as large as a body's, which the C library keeps once it has seen one come and go.
THREAD = """
import ctypes, sys, threading
from inflight.server.heap import c_library_trim, resident_bytes, share_one_heap

if sys.argv[1] == "one":
    share_one_heap()
done, over = threading.Event(), threading.Event()

def work():
    for _ in range(2):
        blocks = [bytearray(8 << 20) for _ in range(6)]
        blocks.clear()
    done.set()
    over.wait()

before = resident_bytes()
threading.Thread(target=work).start()
done.wait()
c_library_trim()(0)
print((resident_bytes() - before) >> 20)
over.set()
"""


@pytest.mark.skipif(sys.platform != "linux" or c_library_trim() is None, reason="the C library of Linux")
def test_what_a_thread_freed_goes_back_too() -> None:
    def left(heaps: str) -> int:
        """Mebibytes that stay."""
        command = [sys.executable, "-c", THREAD, heaps]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert left("one") <= 4 < left("own")
