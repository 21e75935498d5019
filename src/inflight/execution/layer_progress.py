"""Reports a step's progress through the model's layers, to readers of its blocks while it is computed.

Knows how many bytes of a block are there once a layer is done: layers stand in a block in their order, so that it fills
from its beginning on. Of a step of several passes the last one counts, in which every chunk ends. Where a pass computes
beside its caller, layers are not reported, and no block is sent before the step ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from msgspec.structs import replace

from inflight.core.types.plan import BatchPlan, EarlySend
from inflight.execution.backends.protocol import KVShape


class StepReader(Protocol):
    """Reads blocks while a step computes them. Called on the thread that runs the steps."""

    def computing(self, sends: Sequence[EarlySend]) -> None:
        """Note that the step that begins completes these blocks."""

    def have(self, nbytes: int) -> None:
        """Note that the first `nbytes` of each of these blocks are computed."""

    def broken_off(self) -> None:
        """Discard what was read: the step was broken off."""


class LayerProgress:
    def __init__(self, ends: Sequence[int], reader: StepReader):
        """Report to a reader. ends: bytes of a block that are done after each layer, from `layer_ends`."""
        self._ends, self._reader = ends, reader
        self._is_read, self._counts = False, False

    def begin(self, plan: BatchPlan) -> None:
        self._is_read = bool(plan.early_sends)
        if self._is_read:
            self._reader.computing(plan.early_sends)

    def begin_pass(self, *, is_last: bool) -> None:
        self._counts = self._is_read and is_last

    def layer_done(self, layer: int) -> None:
        """Report a layer of the current pass as computed."""
        if self._counts:
            self._reader.have(self._ends[layer])

    def broken_off(self) -> None:
        """Report that the step begun last was broken off."""
        if self._is_read:
            self._reader.broken_off()


def layer_ends(shape: KVShape, bytes_per_block: Callable[[KVShape], int]) -> list[int]:
    """Bytes of a block that are there when each layer is done; none, where a block is more than its layers one behind
    the other."""
    sizes = [0 if one is None else bytes_per_block(replace(shape, layers=(one,))) for one in shape.layers]
    ends = list(accumulate(sizes))
    return ends if shape.groups == 1 and ends[-1:] == [bytes_per_block(shape)] else []
