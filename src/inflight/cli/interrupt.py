"""Ctrl-C as a wish to stop at the next step, so that nothing is torn in the middle; a second one stops at once."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupt:
    """While entered, the first SIGINT only sets `wanted`."""

    def __init__(self) -> None:
        self.wanted = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
