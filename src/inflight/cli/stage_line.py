"""Show the stages of long work: a line for each or, on a terminal, one line for all of them, which goes on while one is
computed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from inflight.cli.progress import duration
from inflight.cli.summary import show
from inflight.counted import printable
from inflight.planning.stages import Stage, stage_of

_TICK_SECONDS = 2.0
_CLEAR = "\r\x1b[2K"


class StageLine:
    """Shows sentences; within a `with`, a terminal's last line is the stage that is computed, and goes on meanwhile.

    A timer's signal moves that line, and no thread: a plan forks its jobs, which a process with threads cannot do.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now, self._is_ticking = now, False
        self._stage: Stage | None = None
        self._began = now()
        self._before: Any = None

    def __enter__(self) -> StageLine:
        is_main = threading.current_thread() is threading.main_thread()  # others cannot set a handler
        self._is_ticking = is_main and sys.stderr.isatty() and hasattr(signal, "setitimer")
        if self._is_ticking:
            self._before = signal.signal(signal.SIGALRM, self._tick)
            signal.setitimer(signal.ITIMER_REAL, _TICK_SECONDS, _TICK_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ticking:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)  # None: a handler that is not Python's
            self._write(_CLEAR)
            self._is_ticking = False

    def __call__(self, sentence: str) -> None:
        """Show a sentence, which may say that a stage begins."""
        if (stage := stage_of(sentence)) is not None:
            self._stage, self._began = stage, self._now()
        if self._is_ticking and stage is not None:
            self._draw()
            return
        with self._still():
            if self._is_ticking:
                self._write(_CLEAR)
            show(sentence)

    def begin(self, name: str) -> None:
        """Begin work that is no stage of a number of them."""
        self._stage, self._began = Stage(name, None), self._now()

    def line(self) -> str:
        """Return the line that goes on: the stage, how long it runs, and the time left, as estimated when it began."""
        if self._stage is None:
            return ""
        ran, left = self._now() - self._began, self._stage.seconds_left
        times = [duration(ran)] if ran >= 1 else []
        times += [] if left is None else [f"about {duration(max(1.0, left - ran))} left"]
        return f"{self._stage.text}{': ' if times else ''}{', '.join(times)}"

    def _tick(self, number: int, frame: FrameType | None) -> None:
        self._draw()

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns
        self._write(_CLEAR + printable(self.line())[: width - 1])

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Hold back the timer's signal: a stage that is drawn within a sentence would stand in its line."""
        if not self._is_ticking:
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a terminal that is gone ends no plan
            os.write(sys.stderr.fileno(), text.encode())  # unbuffered: a signal may come within a write of the buffer
