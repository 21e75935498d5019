"""One of several models in the state machine of residency: its memory, state and calls; and which is loaded or evicted
next."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from inflight.server.model_status import ModelStatus, State

HOLD_SWITCHES = 4.0
SECONDS_PER_BYTE = 1e-9  # of loading, before it was seen
STARTING_SECONDS = 1.0  # the same, whatever the size

_IN_MEMORY = ("loading", "loaded", "draining", "unloading")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """Settings of a model.

    Attributes:
        nbytes: Estimated.
        is_pinned: Loaded at the start, and never evicted.
        idle_seconds: Without a call, after which it is unloaded though no other needs its room; None: never.
    """

    name: str
    nbytes: int
    is_pinned: bool = False
    idle_seconds: float | None = None


@dataclass(slots=True, eq=False)
class Resident:
    """The state of a model.

    Attributes:
        waiting: Calls that wait until it is loaded.
        is_asked: It is to be loaded though no call waits: for an operator, or since a call was refused.
        since: When the first of all of them came.
        keep_alive: Seconds that the last call asked for, instead of `ModelNeeds.idle_seconds`; None: it asked for none.
        makes_room_for: The model that it is drained for; None: an operator has it unloaded.
        began: When loading did.
    """

    needs: ModelNeeds
    nbytes: int
    load_seconds: float
    state: State = "unloaded"
    waiting: int = 0
    is_asked: bool = False
    since: float | None = None
    in_flight: int = 0
    call_seconds: float = 0.0
    last_used: float = -math.inf
    began: float = -math.inf
    loaded_at: float = -math.inf
    keep_alive: float | None = None
    makes_room_for: str | None = None
    failures: int = 0
    failure: str = ""
    retry_at: float = -math.inf

    @classmethod
    def of(cls, needs: ModelNeeds) -> Resident:
        return cls(needs, needs.nbytes, STARTING_SECONDS + needs.nbytes * SECONDS_PER_BYTE)

    @property
    def name(self) -> str:
        return self.needs.name

    @property
    def in_memory(self) -> bool:
        return self.state in _IN_MEMORY

    @property
    def is_busy(self) -> bool:
        return self.in_flight > 0 or self.waiting > 0

    @property
    def is_needed(self) -> bool:
        """Return whether it is to be loaded, or to stay, for calls or since it is pinned."""
        return self.since is not None or self.needs.is_pinned

    @property
    def is_drained(self) -> bool:
        return self.state == "draining" and not self.in_flight

    @property
    def is_unloaded_once_idle(self) -> bool:
        """Return whether an operator has it unloaded, and its calls have not ended."""
        return self.state == "draining" and self.makes_room_for is None and self.in_flight > 0

    @property
    def idle_at(self) -> float:
        """Return when it has had no call for long enough to be unloaded."""
        seconds = self.needs.idle_seconds if self.keep_alive is None else self.keep_alive
        if self.state != "loaded" or seconds is None or self.needs.is_pinned or self.is_busy:
            return math.inf
        return self.last_used + seconds

    def keep(self) -> None:
        """Keep it loaded, though it was to be evicted."""
        self.state, self.makes_room_for, self.is_asked = "loaded", None, False
        if not self.waiting:
            self.since = None

    def status(self, seconds: float, now: float) -> ModelStatus:
        """seconds: as `ModelStatus` has them."""
        return ModelStatus(
            self.name,
            self.state,
            self.nbytes,
            self.needs.is_pinned,
            self.in_flight,
            self.waiting,
            seconds,
            self.failure,
            max(0.0, self.idle_at - now) if math.isfinite(self.idle_at) else None,
        )

    def evictable_at(self, other: Resident) -> float:
        """Return the time from which it may be evicted for the other."""
        until = self.protected_until(other, self.loaded_at)
        return until if self.is_busy else min(until, self.last_used + self.load_seconds)

    def protected_until(self, other: Resident, loaded_at: float) -> float:
        """Return the same, if it is busy from its loading on."""
        return loaded_at + HOLD_SWITCHES * (self.load_seconds + other.load_seconds)


def is_switching(models: Iterable[Resident]) -> bool:
    """Return whether a model is being loaded, unloaded or evicted: another one has to wait."""
    return any(one.state in ("loading", "draining", "unloading") and not one.is_unloaded_once_idle for one in models)


def load_order(models: Iterable[Resident]) -> list[Resident]:
    """Return the models that are to be loaded, in their order."""
    waiting = [one for one in models if one.since is not None and one.state == "unloaded"]
    return sorted(waiting, key=lambda one: one.since or 0.0)


def next_to_load(models: Collection[Resident]) -> Resident | None:
    """Return the model that is loaded next: the first of those that are needed, else a pinned one."""
    if order := load_order(models):
        return order[0]
    return next((one for one in models if one.needs.is_pinned and one.state == "unloaded"), None)


def can_evict(models: Iterable[Resident]) -> bool:
    """Return whether another model could be evicted. Estimates may be wrong: a model that does not fit beside pinned
    ones that are larger than was estimated is loaded all the same."""
    return any(one.in_memory and not one.needs.is_pinned for one in models)


def evictable(models: Iterable[Resident]) -> list[Resident]:
    """Return the models that may be evicted: idle ones first, of these the least recently used first."""
    mine = [one for one in models if one.state == "loaded" and not one.needs.is_pinned]
    return sorted(mine, key=lambda one: (one.is_busy, one.loaded_at if one.is_busy else one.last_used))


def victims(nbytes: int, of: Iterable[Resident], free: int) -> list[Resident]:
    """Return the fewest of the first of them that make room for so many bytes; all if that is not enough."""
    found: list[Resident] = []
    for one in of:
        if nbytes <= free:
            break
        found.append(one)
        free += one.nbytes
    for one in tuple(found):  # a small one before a large one may not have been needed
        if nbytes <= free - one.nbytes:
            found.remove(one)
            free -= one.nbytes
    return found
