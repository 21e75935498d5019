"""Fill masks in threads: one while a pass computes, and others for what takes longer than a pass may wait."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec import Struct

from inflight.execution.backends.protocol import Array
from inflight.execution.grammars.compiling import lower_priority

SLOW_SECONDS = 0.005  # of processor time, from which on a mask is filled beside the steps; usual ones take 0.00003
PATIENCE_SECONDS = 0.02  # of processor time of the thread that fills the masks of a pass, for which that waits
MAX_SLOW_SECONDS = 10.0  # of processor time, that the slow masks of one output may take together
_THREADS = 2
log = logging.getLogger(__name__)
_NICE = 15


class SlowMask(Struct, eq=False):
    """The masks of one row behind `num_tokens` tokens and behind each draft: uint32[1 + D, V / 32, rounded up]. done:
    they are filled."""

    transfer_id: int
    num_tokens: int
    drafts: tuple[int, ...]
    lines: Array
    done: bool = False
    is_reported: bool = False

    def set_done(self, filling: Future[None]) -> None:
        """Finish filling. After a fault nothing can be drawn: a free draw would not be an answer."""
        fault = None if filling.cancelled() else filling.exception()
        if fault is not None:
            log.error("the mask of a grammar could not be filled", exc_info=fault)
            self.lines[:] = 0
        self.done = True

    def is_of(self, num_tokens: int, drafts: tuple[int, ...]) -> bool:
        """Return whether these are the masks of a chunk with so many known tokens, and these drafts."""
        return (self.num_tokens, self.drafts) == (num_tokens, drafts)


class SlowMasks:
    """The masks that draws wait for, and threads of low priority that fill them beside the steps.

    A row whose mask is missing sits the step out: its draw is reported as waiting for a transfer_id, and the scheduler
    plans the row again once `poll` has returned that. These ids count down from -1; those of transfers are positive.
    """

    def __init__(self) -> None:
        self._last_transfer_id = 0
        self._awaited: list[SlowMask] = []  # by draws that were reported as waiting
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, num_tokens: int, drafts: tuple[int, ...], lines: Array) -> SlowMask:
        """Return a transfer_id for masks that are being filled, or will be; the thread that fills them sets `done`."""
        self._last_transfer_id -= 1
        return SlowMask(self._last_transfer_id, num_tokens, drafts, lines)

    def fill(self, mask: SlowMask, work: Callable[[], None]) -> None:
        """Fill it in a thread of low priority: steps come first."""
        self._pool = self._pool or ThreadPoolExecutor(
            _THREADS, "slow-masks", lambda: lower_priority(_NICE, threading.get_native_id())
        )
        self._pool.submit(work).add_done_callback(mask.set_done)

    def report(self, mask: SlowMask) -> None:
        """Have `poll` return the transfer_id of this mask once it is filled, for the first of the draws in flight."""
        if not mask.is_reported:
            mask.is_reported = True
            if mask not in self._awaited:
                self._awaited.append(mask)

    def poll(self) -> list[int] | None:
        """Return the transfer_ids of masks that have been filled since the last call; None: no draw waits."""
        if not self._awaited:
            return None
        ended = [one.transfer_id for one in self._awaited if one.done]
        self._awaited = [one for one in self._awaited if one.transfer_id not in ended]
        return ended

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class MaskThread:
    """The thread that fills the masks of a pass, and the processor time that it has spent on them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "masks")
        self._thread = 0
        self._began = 0.0  # on the thread's clock of processor time, or by the wall where it has none

    def submit(self, work: Callable[[], None]) -> Future[None]:
        return self._pool.submit(self._run, work)

    @property
    def is_overdue(self) -> bool:
        """Whether it has computed longer than a pass waits. That it was not let compute does not count."""
        return self._began > 0 and _thread_seconds(self._thread) - self._began > PATIENCE_SECONDS

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _run(self, work: Callable[[], None]) -> None:
        self._thread = threading.get_ident()
        self._began = _thread_seconds(self._thread)
        try:
            work()
        finally:
            self._began = 0.0


def _thread_seconds(thread: int) -> float:
    """Return the processor time of a thread; seconds by the wall, where the system does not say."""
    with contextlib.suppress(AttributeError, OSError):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.monotonic()
