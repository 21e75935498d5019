"""A state machine of which models are in memory: which is loaded, which is evicted, and how long a call would wait.

It has neither processes nor a clock: `now` is an argument, and `decide` returns what is to be done. There is one switch
at a time: two loads at once share the cores and the disk, and would both be late. Models that calls wait for are loaded
in the order in which the first call for each came.

Three rules keep a pool that is too small for its load from spending its time on loading:

- a model that has calls in flight stays for `HOLD_SWITCHES` times as long as a switch takes, so that loading is at
  most a fifth of all;
- one that has none stays for as long as loading it again would take, which costs at most twice what knowing the future
  would (the ski rental problem: Karlin et al., 1988);
- one that is evicted is drained: its calls end, and calls that come for it now wait until it is loaded again. One that
  an operator unloads is drained too, but a call that comes before its last one has ended keeps it, and other models
  are loaded meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.counted import counted
from inflight.server.model_pool.resident import (
    ModelNeeds,
    Resident,
    can_evict,
    evictable,
    is_switching,
    load_order,
    next_to_load,
    victims,
)
from inflight.server.model_status import ModelStatus, State
from inflight.server.processes.short_lives import SHORT_LIFE

LATELY = 0.3  # the newest measurement's share of what is expected
FIRST_RETRY, LAST_RETRY = 5.0, 300.0  # seconds until a model that could not be loaded is tried again
_OF_A_LOAD = 0.1  # share that is left at least of a load that takes longer than the last one


@dataclass(frozen=True, slots=True)
class Load:
    name: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload the model, which has no call in flight."""

    name: str


Decision = Load | Unload


class BudgetError(ValueError):
    """Some models can never be loaded; the sentence names bytes."""


class ResidencyError(ValueError):
    """A model cannot be unloaded now; the sentence says why."""


class Residency:
    def __init__(self, models: Sequence[ModelNeeds], budget: int):
        """budget: bytes for all of them together. Raises BudgetError for models that can never be loaded."""
        self.budget = budget
        self._models = {one.name: Resident.of(one) for one in models}
        _check_budget(list(self._models.values()), budget)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all that are in memory, or are being loaded."""
        return sum(one.nbytes for one in self._models.values() if one.in_memory)

    def add(self, needs: ModelNeeds) -> None:
        """Add a model. Raises BudgetError where it could never be loaded."""
        added = Resident.of(needs)
        _check_budget([*self._models.values(), added], self.budget)
        self._models[needs.name] = added

    def remove(self, name: str) -> bool:
        """Remove a model that is not in memory, and that no call waits for; return whether it was one."""
        one = self._models[name]
        if one.in_memory or one.is_needed:
            return False
        del self._models[name]
        return True

    def state(self, name: str) -> State:
        return self._models[name].state

    def status(self, name: str, now: float) -> ModelStatus:
        one = self._models[name]
        seconds = max(0.0, one.retry_at - now) if one.state == "failed" else self.seconds_until(name, now)
        return one.status(seconds, now)

    # -- calls ----------------------------------------------------------------------------------------------------

    def enter(self, name: str, now: float) -> bool:
        """Give the model to a call; return whether it has it. A call that has not may wait for it."""
        one = self._models[name]
        if one.is_unloaded_once_idle:
            one.keep()
        if one.state != "loaded":
            return False
        one.in_flight += 1
        one.last_used = now
        return True

    def keep_alive(self, name: str, seconds: float | None) -> None:
        """Set after how many seconds without a call the model is unloaded; None: as its settings say."""
        self._models[name].keep_alive = seconds

    def left(self, name: str, seconds: float, now: float) -> None:
        """Take note that a call has ended. seconds: that it took."""
        one = self._models[name]
        one.in_flight -= 1
        one.last_used = now
        one.call_seconds += LATELY * (seconds - one.call_seconds)

    def wait(self, name: str, now: float) -> None:
        """Count one more call that waits until the model is loaded."""
        one = self._models[name]
        one.waiting += 1
        one.since = now if one.since is None else one.since

    def end_wait(self, name: str) -> None:
        """Count one call less, which has gone, or enters."""
        one = self._models[name]
        one.waiting -= 1
        if not one.waiting and not one.is_asked:
            one.since = None

    def ask(self, name: str, now: float) -> None:
        """Have the model loaded in its order, though no call waits for it: one was refused, and may come again."""
        one = self._models[name]
        if one.state not in ("loading", "loaded"):
            one.is_asked = True
            one.since = now if one.since is None else one.since

    def refusal(self, name: str, now: float) -> tuple[str, float] | None:
        """Return why no call may wait for the model now, and for how many seconds that is so."""
        one = self._models[name]
        return (one.failure, one.retry_at - now) if one.state == "failed" and now < one.retry_at else None

    # -- an operator ----------------------------------------------------------------------------------------------

    def load(self, name: str, now: float) -> None:
        """Have the model loaded without a call; one that could not be loaded is tried again at once."""
        one = self._models[name]
        one.retry_at = min(one.retry_at, now)
        if one.is_unloaded_once_idle:
            one.keep()
        else:
            self.ask(name, now)

    def unload(self, name: str) -> None:
        """Unload the model once it has no call. Raises ResidencyError if it is pinned, or is being loaded."""
        one = self._models[name]
        if one.needs.is_pinned:
            raise ResidencyError(f"The model {name!r} is pinned; take pin = true out of the models file.")
        if one.state == "loading":
            raise ResidencyError(f"The model {name!r} is being loaded; unload it once it is.")
        if one.state in ("loaded", "draining"):
            one.state, one.makes_room_for, one.is_asked = "draining", None, False

    # -- what became of decisions ---------------------------------------------------------------------------------

    def loaded(self, name: str, nbytes: int, now: float) -> None:
        """Take note that the model is in memory. nbytes: measured."""
        one = self._models[name]
        one.load_seconds = now - one.began
        one.state, one.loaded_at, one.last_used = "loaded", now, now
        one.nbytes, one.failure, one.is_asked = nbytes, "", False
        if not one.waiting:
            one.since = None

    def failed(self, name: str, why: str, now: float) -> None:
        """Take note that it could not be loaded, or has crashed soon after; no call waits for it any more."""
        one = self._models[name]
        one.failures += 1
        one.state, one.failure = "failed", why
        one.retry_at = now + min(FIRST_RETRY * 2 ** (one.failures - 1), LAST_RETRY)
        one.waiting, one.since, one.is_asked, one.in_flight = 0, None, False, 0

    def ended(self, name: str, now: float, why: str = "") -> None:
        """Take note that it is not in memory any more. why: of a crash."""
        one = self._models[name]
        if why and now - one.loaded_at < SHORT_LIFE:
            return self.failed(name, why, now)
        if not why:
            one.failures = 0
        one.state, one.in_flight = "unloaded", 0

    # -- decisions ------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Decision]:
        """Return what is to be done now. To be called whenever something has happened, and at `next_time`."""
        self._retry(now)
        self._keep_unneeded_room()
        decisions: list[Decision] = [_unload(one) for one in self._models.values() if one.is_drained]
        decisions += [_unload(one) for one in self._models.values() if one.idle_at <= now]
        if is_switching(self._models.values()):
            return decisions
        candidate = next_to_load(self._models.values())
        if candidate is None:
            return decisions
        if candidate.nbytes <= self.budget - self.nbytes or not can_evict(self._models.values()):
            candidate.state, candidate.began = "loading", now
            return [*decisions, Load(candidate.name)]
        leaving = self._leaving(candidate)
        if leaving and all(one.evictable_at(candidate) <= now for one in leaving):
            for one in leaving:
                one.state, one.makes_room_for = "draining", candidate.name
            decisions += [_unload(one) for one in leaving if one.is_drained]
        return decisions

    def next_time(self, now: float) -> float | None:
        """Return when to decide again, if nothing happens before."""
        times = [one.idle_at for one in self._models.values()]
        times += [one.retry_at for one in self._models.values() if one.state == "failed" and one.needs.is_pinned]
        candidate = next_to_load(self._models.values())
        if candidate is not None and not is_switching(self._models.values()):
            times += [max((one.evictable_at(candidate) for one in self._leaving(candidate)), default=math.inf)]
        earliest = min(times, default=math.inf)
        return None if earliest == math.inf else max(earliest, now)

    def seconds_until(self, name: str, now: float) -> float:
        """Return the expected seconds until the model is loaded."""
        return _seconds_until(
            self._models[name], list(self._models.values()), load_order(self._models.values()), self.budget, now
        )

    # -- rules ----------------------------------------------------------------------------------------------------

    def _leaving(self, candidate: Resident) -> list[Resident]:
        """Return the models that have to be evicted for it; none while one that is drained holds the room."""
        found = victims(candidate.nbytes, evictable(self._models.values()), self.budget - self.nbytes)
        free = self.budget - self.nbytes + sum(one.nbytes for one in found)
        drained = any(one.is_unloaded_once_idle for one in self._models.values())
        return [] if drained and candidate.nbytes > free else found

    def _retry(self, now: float) -> None:
        for one in self._models.values():
            if one.state == "failed" and one.retry_at <= now:
                one.state = "unloaded"

    def _keep_unneeded_room(self) -> None:
        """Keep the models that were to be evicted for calls that have gone."""
        for one in self._models.values():
            if (
                one.state == "draining"
                and one.makes_room_for is not None
                and not self._models[one.makes_room_for].is_needed
            ):
                one.keep()


def _check_budget(models: Sequence[Resident], budget: int) -> None:
    """Raises BudgetError for models that can never be loaded."""
    pinned = [one for one in models if one.needs.is_pinned]
    of_pinned = sum(one.nbytes for one in pinned)
    if of_pinned > budget:
        raise BudgetError(
            f"The pinned models ({', '.join(one.name for one in pinned)}) take {gib(of_pinned)}, and the budget is "
            f"{gib(budget)}; raise memory in the models file, or pin fewer."
        )
    for one in models:
        if not one.needs.is_pinned and one.nbytes > budget - of_pinned:
            beside = f", of which {counted(len(pinned), 'pinned model takes', 'pinned models take')} "
            beside = f"{beside}{gib(of_pinned)}" if pinned else ""
            raise BudgetError(
                f"The model {one.name!r} takes {gib(one.nbytes)}, and the budget is {gib(budget)}{beside}; "
                "raise memory in the models file, or lower the model's kv-memory."
            )


def _unload(one: Resident) -> Unload:
    one.state, one.makes_room_for = "unloading", None
    return Unload(one.name)


def gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _seconds_until(
    asked: Resident, models: Sequence[Resident], line: Sequence[Resident], budget: int, now: float
) -> float:
    """Return the seconds until the model is loaded, if loads and calls take as long as the last ones did.

    Args:
        line: The models that are to be loaded, in their order.
        budget: Bytes for all models.
    """
    if asked.state == "loaded":
        return 0.0
    time, stays = now, [one for one in models if one.state in ("loading", "loaded")]
    loaded_at: dict[str, float] = {}  # of those that are not in memory yet
    has_room = asked.nbytes <= budget - sum(one.nbytes for one in models if one.in_memory)
    for one in models:
        if one.state == "loading":
            time = loaded_at[one.name] = max(one.began + one.load_seconds, now + _OF_A_LOAD * one.load_seconds)
        elif one.state == "draining" and one.in_flight and not (one.is_unloaded_once_idle and has_room):
            time = max(time, now + one.call_seconds)
    ahead = line[: line.index(asked)] if asked in line else line
    for one in () if asked in stays else (*ahead, asked):
        time = loaded_at[one.name] = _loaded_at(one, time, stays, loaded_at, budget)
    return time - now


def _loaded_at(one: Resident, time: float, stays: list[Resident], loaded_at: dict[str, float], budget: int) -> float:
    """Return when the model is loaded, if it is the next from that time on.

    Args:
        stays: The models in memory then; it joins them.
        loaded_at: When those of them are loaded that are not in memory yet.
    """
    free = budget - sum(other.nbytes for other in stays)
    if one.nbytes > free:
        there = evictable(stays)
        coming = [other for other in stays if other not in there and not other.needs.is_pinned]
        for victim in victims(one.nbytes, [*there, *coming], free):
            stays.remove(victim)
            if victim.name in loaded_at:
                time = max(time, victim.protected_until(one, loaded_at[victim.name]) + victim.call_seconds)
            else:
                time = max(time, victim.evictable_at(one) + (victim.call_seconds if victim.in_flight else 0.0))
    stays.append(one)
    return time + one.load_seconds
