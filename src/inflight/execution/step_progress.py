"""Report the progress of steps to threads beside them, which rest meanwhile or read blocks layer by layer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from msgspec.structs import replace

from inflight.core.types.plan import BatchPlan, EarlySend
from inflight.execution.backends.protocol import KVShape

_BETWEEN_STEPS = 0.25  # seconds from a step's end to the beginning of the next, at most, while they follow one another


class StepActivity:
    def __init__(self) -> None:
        self._is_computing, self._ended = False, -math.inf
        self._between = threading.Event()  # no step is being computed
        self._between.set()

    @property
    def is_going_on(self) -> bool:
        """Whether steps are computed, one after the other."""
        return self._is_computing or time.perf_counter() - self._ended < _BETWEEN_STEPS

    def began(self, computes: bool) -> None:
        """Note that a step begins. computes: any tokens; where it does not, its transfers have the cores alone."""
        self._is_computing = computes
        if computes:
            self._between.clear()
        else:
            self._ended = -math.inf

    def ended(self) -> None:
        if self._is_computing:
            self._is_computing, self._ended = False, time.perf_counter()
            self._between.set()

    def rest(self, worked: float, times: float, longest: float) -> None:
        """Sleep for `times` as long as the work took, at most `longest` seconds, while steps are computed. A step's
        next token is then late by no more than a small part of a step."""
        if self.is_going_on:
            time.sleep(min(longest, times * worked))

    def await_gap(self, worked: float, times: float, longest: float) -> None:
        """Sleep as `rest` does, for work in small pieces, but no longer than until the current step ends. While the
        next step is planned a core is idle, and a piece that is done then delays no step."""
        if self._is_computing:
            self._between.wait(min(longest, times * worked))


class StepReader(Protocol):
    """Reads blocks while a step computes them. Called on the thread that runs the steps."""

    def begin_step(self, sends: Sequence[EarlySend]) -> None:
        """Note that the step that begins completes these blocks."""

    def advance(self, nbytes: int) -> None:
        """Note that the first `nbytes` of each of these blocks are computed."""

    def fail_step(self) -> None:
        """Discard what was read: the step was broken off."""


class LayerProgress:
    def __init__(self, ends: Sequence[int], reader: StepReader):
        """Report to a reader. ends: bytes of a block that are done after each layer, from `layer_ends`."""
        self._ends, self._reader = ends, reader
        self._is_read, self._counts = False, False

    def begin(self, plan: BatchPlan) -> None:
        self._is_read = bool(plan.early_sends)
        if self._is_read:
            self._reader.begin_step(plan.early_sends)

    def begin_pass(self, *, is_last: bool) -> None:
        self._counts = self._is_read and is_last

    def layer_done(self, layer: int) -> None:
        """Report a layer of the current pass as computed."""
        if self._counts:
            self._reader.advance(self._ends[layer])

    def fail_step(self) -> None:
        """Report that the step begun last was broken off."""
        if self._is_read:
            self._reader.fail_step()


def layer_ends(shape: KVShape, bytes_per_block: Callable[[KVShape], int]) -> list[int]:
    """Return the bytes of a block that are there when each layer is done; none where a block is more than its layers
    one behind the other."""
    if shape.groups > 1:
        return []
    sizes = [0 if one is None else bytes_per_block(replace(shape, layers=(one,))) for one in shape.layers]
    ends = list(accumulate(sizes))
    return ends if ends[-1:] == [bytes_per_block(shape)] else []
