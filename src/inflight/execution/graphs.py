"""Limit which steps a GPU replays as graphs, and capture graphs before the first request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from inflight.core.types.executor import Executor
from inflight.core.types.plan import BatchPlan

CAPTURE_SECONDS = 10.0  # of a start; what is left is captured when it first comes


class GraphLimits(NamedTuple):
    """Sizes up to which steps are replayed as graphs; 0: such steps have no graph.

    Attributes:
        rows: of steps that only decode.
        tokens: of all other steps.
    """

    rows: int
    tokens: int


NO_GRAPHS = GraphLimits(0, 0)


@runtime_checkable
class CapturesAhead(Protocol):
    """A decoder that launches passes of some sizes faster once it has seen one of each."""

    def capture_ahead(self, run: Callable[[Sequence[int]], None], seconds: float) -> None:
        """Capture passes until the seconds are over. run: computes a pass in chunks of so many tokens."""


def warm_up(decoder: object, executor: Executor, seconds: float = CAPTURE_SECONDS) -> None:
    """Compute padding steps, which use no request's rows, for the decoder to capture. Raises RuntimeError where the
    executor cannot compute a step."""

    def compute(chunks: Sequence[int]) -> None:
        result = executor.submit(BatchPlan(0, (), padding=tuple(chunks))).result()
        if result.error is not None:
            raise RuntimeError(result.error)

    if isinstance(decoder, CapturesAhead):
        decoder.capture_ahead(compute, seconds)
