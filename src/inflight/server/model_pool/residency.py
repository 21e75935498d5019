"""Which models are in memory: who is loaded, who gives way, and how long whoever waits will have to.

Knows names, bytes, calls and seconds; `now` is an argument of every verb, and what is to be done is asked for
(`decide`): no process, no clock. One switch at a time: two loads at once share the cores and the disk, and would both
be late. Those that wait have their turn in the order in which the first of each came.

Three rules keep a pool that is too small for its load from spending its time on loading:

- a model that has calls under way stays for `HOLD_SWITCHES` times as long as a switch takes, so that loading is at
  most a fifth of all;
- one that has none stays for as long as loading it again would take, which costs at most twice what knowing the future
  would (the ski rental problem: Karlin et al., 1988);
- one that has to give way is drained: its calls end, what comes for it now waits for its next turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from inflight.counted import counted

State = Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]

HOLD_SWITCHES = 4.0
SECONDS_PER_BYTE = 1e-9  # of loading, before it was seen
STARTING_SECONDS = 1.0  # the same, whatever the size
LATELY = 0.3  # the newest measurement's share of what is expected
FIRST_RETRY, LAST_RETRY = 5.0, 300.0  # seconds until a model that could not be loaded is tried again
SHORT_LIFE = 10.0  # seconds; a model that breaks down sooner is not loaded at once again

_IN_MEMORY = ("loading", "loaded", "draining", "unloading")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """nbytes: that it takes in memory. is_pinned: loaded at the start, and gives way to nobody. idle_seconds: without
    a call, after which it is unloaded though nobody needs its room; None: never."""

    name: str
    nbytes: int
    is_pinned: bool = False
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    name: str


@dataclass(frozen=True, slots=True)
class Unload:
    """No call is under way."""

    name: str


Decision = Load | Unload


class BudgetError(ValueError):
    """Models that can never be loaded; the sentence names bytes."""


class ResidencyError(ValueError):
    """What was asked for cannot be done now; the sentence says why."""


@dataclass(slots=True, eq=False)
class _Model:
    """waiting: calls that wait until it is loaded; is_asked: an operator does. since: when the first of them came.
    makes_room_for: whom it is drained for; None: an operator wants it unloaded."""

    needs: ModelNeeds
    nbytes: int
    load_seconds: float
    state: State = "unloaded"
    waiting: int = 0
    is_asked: bool = False
    since: float | None = None
    under_way: int = 0
    call_seconds: float = 0.0
    last_used: float = -math.inf
    began: float = -math.inf  # loading
    loaded_at: float = -math.inf
    makes_room_for: str | None = None
    failures: int = 0
    failure: str = ""
    retry_at: float = -math.inf

    @property
    def name(self) -> str:
        return self.needs.name

    @property
    def in_memory(self) -> bool:
        return self.state in _IN_MEMORY

    def gives_way_at(self, other: _Model) -> float:
        """The time from which it may be unloaded for the other's sake."""
        held = self.held_until(other, self.loaded_at)
        return held if self.under_way else min(held, self.last_used + self.load_seconds)

    def held_until(self, other: _Model, loaded_at: float) -> float:
        """The same, if it is busy from its loading on."""
        return loaded_at + HOLD_SWITCHES * (self.load_seconds + other.load_seconds)


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What there is to tell of one. seconds: until it is loaded, as far as is known; 0.0 where it is, and for one that
    failed until it is tried again. failure: why it could not be loaded."""

    name: str
    state: State
    nbytes: int
    is_pinned: bool
    under_way: int
    waiting: int
    seconds: float
    failure: str = ""


class Residency:
    def __init__(self, models: Sequence[ModelNeeds], budget: int):
        """budget: bytes for all of them together. Raises BudgetError for models that can never be loaded."""
        self._budget = budget
        self._models = {
            one.name: _Model(one, one.nbytes, STARTING_SECONDS + one.nbytes * SECONDS_PER_BYTE) for one in models
        }
        self._check_budget()

    @property
    def budget(self) -> int:
        return self._budget

    @property
    def nbytes(self) -> int:
        """Of all that are in memory, or on their way."""
        return sum(one.nbytes for one in self._models.values() if one.in_memory)

    def state(self, name: str) -> State:
        return self._models[name].state

    def status(self, name: str, now: float) -> ModelStatus:
        one = self._models[name]
        seconds = max(0.0, one.retry_at - now) if one.state == "failed" else self.seconds_until(name, now)
        return ModelStatus(
            name, one.state, one.nbytes, one.needs.is_pinned, one.under_way, one.waiting, seconds, one.failure
        )

    # -- calls ----------------------------------------------------------------------------------------------------

    def enter(self, name: str, now: float) -> bool:
        """A call wants the model; whether it has it. Who has not may wait for it."""
        one = self._models[name]
        if one.state != "loaded":
            return False
        one.under_way += 1
        one.last_used = now
        return True

    def left(self, name: str, seconds: float, now: float) -> None:
        """A call that took so long has ended."""
        one = self._models[name]
        one.under_way -= 1
        one.last_used = now
        one.call_seconds += LATELY * (seconds - one.call_seconds)

    def wait(self, name: str, now: float) -> None:
        """One more waits until the model is loaded; then it enters."""
        one = self._models[name]
        one.waiting += 1
        one.since = now if one.since is None else one.since

    def waits_no_more(self, name: str) -> None:
        """One of those that waited has gone, or entered."""
        one = self._models[name]
        one.waiting -= 1
        if not one.waiting and not one.is_asked:
            one.since = None

    def refusal(self, name: str, now: float) -> tuple[str, float] | None:
        """Why nobody may wait for the model now, and for how many seconds that is so."""
        one = self._models[name]
        return (one.failure, one.retry_at - now) if one.state == "failed" and now < one.retry_at else None

    # -- an operator ----------------------------------------------------------------------------------------------

    def load(self, name: str, now: float) -> None:
        """Though nobody calls it; one that could not be loaded is tried again at once."""
        one = self._models[name]
        one.retry_at = min(one.retry_at, now)
        if one.state == "draining" and one.makes_room_for is None:
            one.state = "loaded"
        elif one.state not in ("loading", "loaded"):
            one.is_asked = True
            one.since = now if one.since is None else one.since

    def unload(self, name: str) -> None:
        """Once its calls have ended. Raises ResidencyError for one that is pinned, or is being loaded."""
        one = self._models[name]
        if one.needs.is_pinned:
            raise ResidencyError(f"The model {name!r} is pinned; take pin = true out of the models file.")
        if one.state == "loading":
            raise ResidencyError(f"The model {name!r} is being loaded; unload it once it is.")
        if one.state in ("loaded", "draining"):
            one.state, one.makes_room_for = "draining", None

    # -- what became of decisions ---------------------------------------------------------------------------------

    def loaded(self, name: str, nbytes: int, now: float) -> None:
        """nbytes: that it takes, as seen."""
        one = self._models[name]
        one.load_seconds = now - one.began
        one.state, one.loaded_at, one.last_used = "loaded", now, now
        one.nbytes, one.failure, one.is_asked = nbytes, "", False
        if not one.waiting:
            one.since = None

    def failed(self, name: str, why: str, now: float) -> None:
        """It could not be loaded, or has broken down soon after. Nobody waits for it any more."""
        one = self._models[name]
        one.failures += 1
        one.state, one.failure = "failed", why
        one.retry_at = now + min(FIRST_RETRY * 2 ** (one.failures - 1), LAST_RETRY)
        one.waiting, one.since, one.is_asked, one.under_way = 0, None, False, 0

    def ended(self, name: str, now: float, why: str = "") -> None:
        """It is in memory no more. why: where nobody asked it to end."""
        one = self._models[name]
        if why and now - one.loaded_at < SHORT_LIFE:
            return self.failed(name, why, now)
        if not why:
            one.failures = 0
        one.state, one.under_way = "unloaded", 0

    # -- decisions ------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Decision]:
        """What is to be done now. Asked again whenever something has happened, and at `next_time`."""
        self._retry(now)
        self._keep_unneeded_room()
        decisions: list[Decision] = [self._ends(one) for one in self._models.values() if _is_drained(one)]
        decisions += [self._ends(one) for one in self._models.values() if _idle_at(one) <= now]
        if self._is_switching:
            return decisions
        candidate = self._candidate()
        if candidate is None:
            return decisions
        if candidate.nbytes <= self._budget - self.nbytes or not self._is_shared:
            candidate.state, candidate.began = "loading", now
            return [*decisions, Load(candidate.name)]
        victims = self._victims(candidate, self._givers())
        if victims and all(one.gives_way_at(candidate) <= now for one in victims):
            for one in victims:
                one.state, one.makes_room_for = "draining", candidate.name
            decisions += [self._ends(one) for one in victims if _is_drained(one)]
        return decisions

    def next_time(self, now: float) -> float | None:
        """When to decide anew, if nothing happens before."""
        times = [_idle_at(one) for one in self._models.values()]
        times += [one.retry_at for one in self._models.values() if one.state == "failed" and one.needs.is_pinned]
        candidate = self._candidate()
        if candidate is not None and not self._is_switching:
            victims = self._victims(candidate, self._givers())
            times += [max((one.gives_way_at(candidate) for one in victims), default=math.inf)]
        earliest = min(times, default=math.inf)
        return None if earliest == math.inf else max(earliest, now)

    def seconds_until(self, name: str, now: float) -> float:
        """Until the model is loaded, if what is known goes on: loads take as long as the last ones, calls too."""
        asked = self._models[name]
        if asked.state == "loaded":
            return 0.0
        time, stays = now, [one for one in self._models.values() if one.state in ("loading", "loaded")]
        loaded_at: dict[str, float] = {}  # of those that are not in memory yet
        for one in self._models.values():
            if one.state == "loading":
                time = loaded_at[one.name] = max(one.began + one.load_seconds, now + 0.1 * one.load_seconds)
            elif one.state == "draining" and one.under_way:
                time = max(time, now + one.call_seconds)
        line = self._line()
        ahead = line[: line.index(asked)] if asked in line else line
        for one in () if asked in stays else (*ahead, asked):
            time = loaded_at[one.name] = self._after(one, time, stays, loaded_at)
        return time - now

    def _after(self, one: _Model, time: float, stays: list[_Model], loaded_at: dict[str, float]) -> float:
        """When the model is loaded, if it is the next from that time on. stays: those in memory then; it joins them."""
        free = self._budget - sum(other.nbytes for other in stays)
        if one.nbytes > free:
            givers = [giver for giver in (*self._givers(), *stays) if giver in stays and not giver.needs.is_pinned]
            for victim in self._victims(one, dict.fromkeys(givers), free):
                stays.remove(victim)
                if victim.name in loaded_at:
                    time = max(time, victim.held_until(one, loaded_at[victim.name]) + victim.call_seconds)
                else:
                    drained = victim.call_seconds if victim.under_way else 0.0
                    time = max(time, victim.gives_way_at(one) + drained)
        stays.append(one)
        return time + one.load_seconds

    # -- rules ----------------------------------------------------------------------------------------------------

    @property
    def _is_switching(self) -> bool:
        return any(one.state in ("loading", "draining", "unloading") for one in self._models.values())

    @property
    def _is_shared(self) -> bool:
        """Whether anybody else could give way. Estimates may be wrong: what does not fit beside pinned models that are
        larger than was thought is loaded all the same."""
        return any(one.in_memory and not one.needs.is_pinned for one in self._models.values())

    def _line(self) -> list[_Model]:
        """Those that are to be loaded, in their order."""
        waiting = [one for one in self._models.values() if one.since is not None and one.state == "unloaded"]
        return sorted(waiting, key=lambda one: one.since or 0.0)

    def _candidate(self) -> _Model | None:
        line = self._line()
        if line:
            return line[0]
        return next((one for one in self._models.values() if one.needs.is_pinned and one.state == "unloaded"), None)

    def _givers(self) -> list[_Model]:
        """Those that may have to give way, the idle ones first, of these those that were used longest ago."""
        mine = [one for one in self._models.values() if one.state == "loaded" and not one.needs.is_pinned]
        return sorted(mine, key=lambda one: (one.under_way > 0, one.loaded_at if one.under_way else one.last_used))

    def _victims(self, candidate: _Model, givers: Iterable[_Model], free: int | None = None) -> list[_Model]:
        """The fewest of the first of them that make room; all where that is not enough."""
        free = self._budget - self.nbytes if free is None else free
        victims: list[_Model] = []
        for one in givers:
            if candidate.nbytes <= free:
                break
            victims.append(one)
            free += one.nbytes
        for one in tuple(victims):  # a small one before a large one may not have been needed
            if candidate.nbytes <= free - one.nbytes:
                victims.remove(one)
                free -= one.nbytes
        return victims

    def _ends(self, one: _Model) -> Unload:
        one.state, one.makes_room_for = "unloading", None
        return Unload(one.name)

    def _retry(self, now: float) -> None:
        for one in self._models.values():
            if one.state == "failed" and one.retry_at <= now:
                one.state = "unloaded"

    def _keep_unneeded_room(self) -> None:
        """Those stay that were to give way for somebody who has gone."""
        for one in self._models.values():
            if one.state == "draining" and one.makes_room_for is not None and not self._is_needed(one.makes_room_for):
                one.state, one.makes_room_for = "loaded", None

    def _is_needed(self, name: str) -> bool:
        one = self._models[name]
        return one.since is not None or one.needs.is_pinned

    def _check_budget(self) -> None:
        pinned = [one for one in self._models.values() if one.needs.is_pinned]
        of_pinned = sum(one.nbytes for one in pinned)
        if of_pinned > self._budget:
            raise BudgetError(
                f"The pinned models ({', '.join(one.name for one in pinned)}) take {gib(of_pinned)}, and the budget is "
                f"{gib(self._budget)}; raise memory in the models file, or pin fewer."
            )
        for one in self._models.values():
            if not one.needs.is_pinned and one.nbytes > self._budget - of_pinned:
                beside = f", of which {counted(len(pinned), 'pinned model takes', 'pinned models take')} "
                beside = f"{beside}{gib(of_pinned)}" if pinned else ""
                raise BudgetError(
                    f"The model {one.name!r} takes {gib(one.nbytes)}, and the budget is {gib(self._budget)}{beside}; "
                    "raise memory in the models file, or lower the model's kv-memory."
                )


def _is_drained(one: _Model) -> bool:
    return one.state == "draining" and not one.under_way


def _idle_at(one: _Model) -> float:
    """When it has had no call for long enough to be unloaded."""
    seconds = one.needs.idle_seconds
    if one.state != "loaded" or seconds is None or one.needs.is_pinned or one.under_way:
        return math.inf
    return one.last_used + seconds


def gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
