"""An answer on its way to its client: what is held for it, and how it is ended before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight.server.answer_memory import BYTES_PER_ENTRY
from inflight.server.errors import ApiError, without_frames

LAST_WORDS = 2.0  # seconds in which a client may still take why its call was ended


class Delivery:
    """Release it."""

    def __init__(self, timeout: float | None, since: float | None = None):
        """timeout: seconds after which it is ended; None: never. since: from when on they count, on the event loop's
        clock; None: from now."""
        self.error: ApiError | None = None  # why it was ended, or the error within a stream
        self.given_up = asyncio.Event()  # it was ended, and its client had time to hear so
        self._whole_bytes = 0  # of an answer that is made, and that its client has not taken yet
        self._report: Callable[[int], None] = lambda entries: None
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        if timeout is not None:
            when = (self._loop.time() if since is None else since) + timeout
            self._timers.append(self._loop.call_at(when, self.end, _took_too_long(timeout)))

    @property
    def held(self) -> int:
        """Return what the server holds for it, in entries of `answer_memory`."""
        return self._whole_bytes // BYTES_PER_ENTRY

    def report_to(self, report: Callable[[int], None]) -> None:
        """Call `report` with the entries that are held from now on, when they come."""
        self._report = report

    def hold_whole(self, nbytes: int) -> None:
        """Count an answer that is made."""
        self._whole_bytes = nbytes
        self._report(self.held)

    def end(self, error: ApiError) -> None:
        """End it before its time. error: for its client, if it can be sent still."""
        if self.error is None:
            self.error = error
            self._timers.append(self._loop.call_later(LAST_WORDS, self.given_up.set))

    def release(self) -> None:
        """Stop its timers, and keep no frames of its error."""
        for timer in self._timers:
            timer.cancel()
        if self.error is not None:
            without_frames(self.error)


def _took_too_long(timeout: float) -> ApiError:
    return ApiError(
        408,
        f"The call took longer than {timeout:g} s, the server's limit (--request-timeout); ask for fewer tokens, or "
        "try again when less is going on.",
        type="timeout_error",
        code="request_timeout",
    )
