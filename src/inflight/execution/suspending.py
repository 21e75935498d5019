"""Suspending steps: the runner's part of `core.types.suspension`.

A step is a generator that yields between two layers of its passes. Where it is suspended, it rests with the activations
that it has; interim steps are computed by a second decoder over the same weights with activations of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from inflight.core.types.suspension import Suspension
from inflight.execution.passes import PassDecoder

if TYPE_CHECKING:
    from inflight.execution.runner import InFlight, ModelRunner

INTERIM_TOKENS = 128  # of a pass of an interim step: longer ones are several passes


@runtime_checkable
class SpannedDecoder(PassDecoder, Protocol):
    """A decoder whose passes can rest between two layers."""

    def spans(self, batch: Any) -> Iterator[int]: ...

    def beside(self, max_tokens: int) -> PassDecoder: ...


class Suspending:
    """Suspends a runner's steps: a `Suspender`."""

    def __init__(self, runner: ModelRunner, decoder: PassDecoder):
        self._runner, self._decoder = runner, decoder
        self._interim: PassDecoder | None = None  # that computes interim steps; made with the first one
        self._is_due: Callable[[float], bool] | None = None
        self._flight: InFlight | None = None  # the suspended one
        self._suspended = 0.0  # since when
        self._seconds = 0.0  # computed before that, since it began or went on

    # -- as a Suspender -----------------------------------------------------------------------------------------

    def suspend_when(self, is_due: Callable[[float], bool]) -> None:
        self._is_due = is_due
        assert isinstance(self._decoder, SpannedDecoder)
        self._interim = self._decoder.beside(min(INTERIM_TOKENS, self._decoder.max_tokens))

    @property
    def suspension(self) -> Suspension | None:
        flight = self._flight
        return None if flight is None else Suspension(flight.computed_layers, self._seconds)

    def resume(self) -> None:
        if self._flight is not None:
            self._runner.advance(self._flight)

    def drop_suspended(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.rest = None
            self._runner.discard(flight.plan)

    # -- for the runner -----------------------------------------------------------------------------------------

    @property
    def interim_decoder(self) -> PassDecoder:
        """Return the decoder of interim steps."""
        return self._interim or self._decoder

    def run(self, flight: InFlight) -> None:
        """Compute a step to its end, or until it is suspended; of a suspended one, the rest."""
        began = time.perf_counter()
        if flight is self._flight:
            self._flight = None
            flight.suspended_seconds += began - self._suspended
        assert flight.rest is not None
        for layers in flight.rest:
            flight.computed_layers += layers
            if self._is_due is not None and self._is_due(time.perf_counter() - began):
                self._flight, self._suspended = flight, time.perf_counter()
                self._seconds = self._suspended - began
                flight.suspended_at += (flight.computed_layers,)
                return
        flight.rest = None
