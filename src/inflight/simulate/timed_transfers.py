"""Transfers of blocks that take time beside the steps: which places there are, and what has ended by when.

Knows virtual time and the places of one engine; each place says how long its transfers take. What ends while a step is
computed is told with that step, as in life.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.core.types.plan import HOST, BatchPlan, EarlySend, Transfer, Transferred
from inflight.engine.clock import VirtualClock


class SimulatedPlace(Protocol):
    @property
    def next_end(self) -> float:
        """When the next one ends, as far as is known now; infinite where none is known to."""

    @property
    def out(self) -> bool:
        """Whether any has not been told to have ended."""

    def serves(self, place: str) -> bool: ...

    def begin(self, transfer: Transfer, now: float) -> None: ...

    def ended(self, now: float) -> list[Transferred]:
        """Those that have ended by then; each is told once."""


class EarlyPlace(Protocol):
    def begin_early(self, early: EarlySend, begin: float, seconds: float) -> None:
        """A step that takes so long from then on computes these blocks."""


class TimedTransfers:
    def __init__(self, places: Sequence[SimulatedPlace], clock: VirtualClock, peers: EarlyPlace | None = None):
        """peers: of the places the one to which blocks may travel while they are computed."""
        self._places, self._clock, self._peers = places, clock, peers
        self._computed = 0.0  # end of the last step whose result was asked for
        self._device_free = 0.0  # end of the last step that was begun

    @property
    def next_end(self) -> float:
        return min(one.next_end for one in self._places)

    @property
    def out(self) -> bool:
        return any(one.out for one in self._places)

    def begin(self, plan: BatchPlan, seconds: float) -> None:
        """With a step that takes so long; what no place serves is part of the step."""
        now = self._clock.now()
        for transfer in plan.transfers:
            for place in self._places:
                if place.serves(transfer.place):
                    place.begin(transfer, now)
        start = max(now, self._device_free)
        self._device_free = start + seconds
        if self._peers is not None:
            for early in plan.early_sends:
                self._peers.begin_early(early, start, seconds)

    def computes(self, seconds: float) -> None:
        """The next step takes so long."""
        self._computed = self._clock.now() + seconds

    def ended(self) -> tuple[Transferred, ...]:
        now = max(self._clock.now(), self._computed)
        return tuple(one for place in self._places for one in place.ended(now))


@dataclass(frozen=True, slots=True)
class TransferRate:
    """Seconds of a transfer: setup_s, and block_s for each block."""

    block_s: float
    setup_s: float = 0.0

    def seconds(self, blocks: int) -> float:
        return self.setup_s + blocks * self.block_s


class Channel:
    """One transfer after the other."""

    def __init__(self, rate: TransferRate):
        self._rate = rate
        self._free = 0.0
        self._out: deque[tuple[float, Transfer]] = deque()

    @property
    def next_end(self) -> float:
        return self._out[0][0] if self._out else math.inf

    def begin(self, transfer: Transfer, now: float) -> None:
        self._free = max(now, self._free) + self._rate.seconds(len(transfer.blocks))
        self._out.append((self._free, transfer))

    def ended(self, now: float) -> list[tuple[float, Transfer]]:
        """With their times."""
        found = []
        while self._out and self._out[0][0] <= now:
            found.append(self._out.popleft())
        return found


class HostCopies:
    """Copies to the host's memory and back that go on beside the steps, as on GPUs; both ways at once."""

    def __init__(self, rate: TransferRate):
        self._ways = Channel(rate), Channel(rate)  # there, back

    @property
    def next_end(self) -> float:
        return min(way.next_end for way in self._ways)

    @property
    def out(self) -> bool:
        return not math.isinf(self.next_end)

    def serves(self, place: str) -> bool:
        return place == HOST

    def begin(self, transfer: Transfer, now: float) -> None:
        self._ways[transfer.kind == "load"].begin(transfer, now)

    def ended(self, now: float) -> list[Transferred]:
        return [Transferred(one.transfer_id) for way in self._ways for _, one in way.ended(now)]
