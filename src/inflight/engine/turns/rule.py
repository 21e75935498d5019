"""The rule: who of those that would compute on the same cores has the turn next, and when one gives way to another.

Knows places, seconds and shares; no processes, no memory and no clock. Urgent places are served before the others, of
equals the one with the least virtual time (seconds computed over weight): start-time fair queueing. Who is not urgent
has what the urgent ones leave: not the moments between two steps of theirs, for which they are expected back, but a
share of the time, the floor, so that nobody starves. (Between two owed turns lies an urgent one, of LEAST_HOLD_SECONDS
at least where it is not over before: of steps far shorter than that, a large floor is not reached.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

RETURN_SECONDS = 0.002  # for which who gave its turn away, with more to do at once, is expected back
LEAST_HOLD_SECONDS = 0.002  # of a turn, before others than urgent ones come between its layers
LEAST_SLICE_SECONDS = 0.001  # that what the others are owed must be worth, and that such a turn has
MOST_OWED_SECONDS = 0.05  # that the others are owed at once
MOST_BLIND_SECONDS = 0.02  # between two looks of who has the turn, whose own work may be urgent no more
AWAY_SECONDS = 0.02  # who wants no turn for so long was idle


@dataclass(frozen=True, slots=True)
class Place:
    """One engine that wants the turn, has it, or is expected back.

    used: its virtual time in its present class (urgent, or not): the seconds that it computed, over its weight.
    slice_seconds: the longest that it computed at a stretch in its last turn: what letting it in takes. returns_at: it
    is expected back until then.
    """

    weight: float
    used: float
    wants: bool
    urgent: bool
    slice_seconds: float = 0.0
    returns_at: float = 0.0

    @property
    def price(self) -> float:
        """Seconds that it must be owed, to be let in before urgent ones."""
        return min(max(self.slice_seconds, LEAST_SLICE_SECONDS), MOST_OWED_SECONDS)


class Next(NamedTuple):
    """Who has the turn next. owed: what it takes of it was owed to it, and is paid for."""

    place: int
    owed: bool = False


def next_turn(places: Mapping[int, Place], owed: float, now: float) -> Next | None:
    """When nobody has the turn. owed: seconds that those who are not urgent have credit for. None: nobody wants it, or
    an urgent one is expected back that comes before: one that slips in between two steps of it would have its share of
    the time by halves, whatever the weights."""
    urgent, other = _first(places, urgent=True), _first(places, urgent=False)
    is_held_up = urgent is not None or now < expected_until(places)
    if other is not None and (not is_held_up or owed >= places[other].price):
        return Next(other, owed=is_held_up)
    if urgent is None or any(one.used < places[urgent].used for one in _expected(places, now)):
        return None
    return Next(urgent)


def displacing(
    places: Mapping[int, Place], holder: int, held_seconds: float, is_owed: bool, owed: float
) -> Next | None:
    """Who comes between two layers of the one that has the turn, and for how long. is_owed: its turn was owed to it.
    None: it goes on."""
    mine = places[holder]
    urgent, other = _first(places, urgent=True), _first(places, urgent=False)
    if urgent is not None and not mine.urgent:
        return None if is_owed and held_seconds < LEAST_SLICE_SECONDS else Next(urgent)
    has_held = held_seconds >= LEAST_HOLD_SECONDS
    if mine.urgent and other is not None and has_held and owed >= places[other].price:
        return Next(other, owed=True)
    equal = urgent if mine.urgent else other
    if equal is None:
        return None
    behind = mine.used - places[equal].used
    # Who was not there when the turn was given away, and is behind by a whole turn of its own, waits for no other's.
    is_due = behind > (0 if has_held else LEAST_HOLD_SECONDS / places[equal].weight)
    return Next(equal) if is_due else None


def due_in(places: Mapping[int, Place], holder: int, held_seconds: float, owed: float, floor: float) -> float:
    """Seconds after which `displacing` may name somebody, if nobody else comes and it named nobody now; inf: never."""
    mine, moments = places[holder], [math.inf]
    urgent, other = _first(places, urgent=True), _first(places, urgent=False)
    if urgent is not None and not mine.urgent:
        moments.append(LEAST_SLICE_SECONDS - held_seconds)
    if other is not None and mine.urgent and floor:
        moments.append(max(LEAST_HOLD_SECONDS - held_seconds, (places[other].price - owed) * (1 - floor) / floor))
    if (equal := urgent if mine.urgent else other) is not None:
        ahead = (places[equal].used - mine.used) * mine.weight
        moments.append(max(LEAST_HOLD_SECONDS - held_seconds, ahead))
    return min(moments)


def expected_until(places: Mapping[int, Place]) -> float:
    """When the last urgent one is no longer expected back; 0: none is."""
    return max((one.returns_at for one in _expected(places, 0.0)), default=0.0)


def start(used: float, active: Collection[float], reached: float) -> float:
    """The virtual time with which an idle place begins: no credit is saved up by sleeping. active: the virtual times of
    the others of its class, those in a short rest too; reached: the most that one of them had when it was given a turn.
    """
    return max(used, reached, min(active, default=reached))


def resume(used: float, weight: float, reached: float) -> float:
    """Return the virtual time with which a place goes on after a short rest. The credit is bounded that it saves up
    while others use its rests: else all that come later would stand as far behind these as it does, and shut them out.
    """
    return max(used, reached - AWAY_SECONDS / weight)


def owed_after(owed: float, seconds: float, floor: float, *, urgent: bool, waits: bool, is_owed: bool) -> float:
    """What the others are owed when somebody has computed for so long. waits: somebody who is not urgent wants the
    turn. is_owed: they computed on what was owed to them; what they get by itself counts, but puts nobody into debt."""
    if urgent:
        return min(MOST_OWED_SECONDS, owed + seconds * floor / (1 - floor)) if waits else owed
    return owed - seconds if is_owed else max(min(owed, 0.0), owed - seconds)


def _expected(places: Mapping[int, Place], now: float) -> Iterable[Place]:
    """Those that gave their turn away with more to do at once."""
    return (one for one in places.values() if one.urgent and not one.wants and now < one.returns_at)


def _first(places: Mapping[int, Place], urgent: bool) -> int | None:
    """Of those of a class that want the turn, the least served; of several, the first."""
    wanting: Iterable[int] = (index for index, one in places.items() if one.wants and one.urgent == urgent)
    return min(wanting, key=lambda index: places[index].used, default=None)
