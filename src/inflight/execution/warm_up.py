"""Compiles and captures a device's passes before the first request.

Knows steps of padding, which use no request's rows; what a decoder makes of them is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from inflight.core.types.plan import BatchPlan, Executor

CAPTURE_SECONDS = 10.0  # of a start; what is left is captured when it first comes


@runtime_checkable
class CapturesAhead(Protocol):
    """A decoder that launches passes of some sizes faster once it has seen one of each."""

    def capture_ahead(self, run: Callable[[Sequence[int]], None], seconds: float) -> None:
        """run: computes a pass in chunks of so many tokens. Begins none when the seconds are over."""


def warm_up(decoder: object, executor: Executor, seconds: float = CAPTURE_SECONDS) -> None:
    """Compute padding steps that the decoder captures. Raises RuntimeError where the executor cannot compute a step."""
    if isinstance(decoder, CapturesAhead):
        decoder.capture_ahead(lambda chunks: _padding(executor, chunks), seconds)


def _padding(executor: Executor, chunks: Sequence[int]) -> None:
    result = executor.submit(BatchPlan(0, (), padding=tuple(chunks))).result()
    if result.error is not None:
        raise RuntimeError(result.error)
