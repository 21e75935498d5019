"""Accounts of turns: who has the turn, who wants it, and what each had, in numbers that may be shared.

Knows places and seconds, and asks the rule; knows no processes. Nobody else may write the numbers meanwhile, but each
may be read at any time. A writer that is killed leaves nothing that others could not go on from: who has the turn is
one number, and what stands beside it is put right by the next who looks.
"""

from __future__ import annotations

import math

from inflight.engine.turns.cells import Cell, Cells, Head
from inflight.engine.turns.rule import (
    AWAY_SECONDS,
    MOST_BLIND_SECONDS,
    RETURN_SECONDS,
    Next,
    Place,
    displacing,
    due_in,
    expected_until,
    next_turn,
    owed_after,
    resume,
    start,
)


class Accounts:
    """Times are those of one clock that all who share the numbers have."""

    def __init__(self, cells: Cells):
        self._cells = cells

    @property
    def holder(self) -> int | None:
        """Who has the turn."""
        return self._cells.holder

    @property
    def look_at(self) -> float:
        """From when on whoever has the turn is to ask whether it is `displaced`; inf: nobody else wants it."""
        return self._cells.head(Head.LOOK_AT)

    def set_floor(self, share: float) -> None:
        """Of the time, for those who are not urgent. Raises ValueError for what is no such share."""
        if not 0 <= share < 1:
            raise ValueError(f"The turns' floor is {share}; give a share of the time from 0 (none) to below 1.")
        self._cells.set_head(Head.FLOOR, share)

    def is_attached(self, place: int) -> bool:
        return self._cells.of(place, Cell.WEIGHT) > 0

    def wants(self, place: int) -> bool:
        return self._cells.of(place, Cell.WANTS) > 0

    def used(self, place: int) -> float:
        """Its virtual time in its present class."""
        return self._cells.of(place, Cell.USED + self._class(place))

    def attach(self, place: int, weight: float) -> None:
        """Raises ValueError for a weight that is none."""
        if not 0 < weight < math.inf:
            raise ValueError(f"The weight of place {place} is {weight}; give a number above 0.")
        self.clear(place)
        self._cells.set(place, Cell.WEIGHT, weight)

    def clear(self, place: int) -> None:
        """Nobody is there any more; `pass_turn` next."""
        self._cells.reset(place)
        if self.holder == place:
            self._cells.set_head(Head.HOLDER, 0)

    def want(self, place: int, urgent: bool, now: float) -> None:
        """`pass_turn` next. Whoever wants already may become urgent, and the other way round."""
        if urgent and self.holder is not None:
            self._charge(self.holder, now)  # until now it was in the way of less
        self._enter(place, urgent, now)
        self._cells.set(place, Cell.WANTS, 1)
        self._cells.set_head(Head.LOOK_AT, 0)

    def withdraw(self, place: int, now: float) -> None:
        """It wants the turn no more, and has it no more if it had; `pass_turn` next."""
        self._cells.set(place, Cell.WANTS, 0)
        self.end(place, 0.0, False, now)

    def pass_turn(self, now: float) -> int | None:
        """Gives the turn to the next one, if nobody has it. Whom to wake: who has it now, or will have it at `free_at`,
        when nobody is expected back any more; None: nobody."""
        if self.holder is not None:
            return None
        places, owed = self._views(now), self._cells.head(Head.OWED)
        following = next_turn(places, owed, now)
        if following is not None:
            self._grant(following, now)
        else:
            following = next_turn(places, owed, math.inf)
        return None if following is None else following.place

    def free_at(self, now: float) -> float:
        """When the turn goes to who is not urgent, where nobody has it; 0: at once."""
        return expected_until(self._views(now))

    def displaced(self, place: int, urgent: bool, slice_seconds: float, now: float) -> int | None:
        """Asked between two layers by whoever has the turn: who has it now instead, and is to be woken; the other wants
        it again. None: it goes on. slice_seconds: as `Place` has them."""
        assert self.holder == place, "asked by whoever has the turn"
        self._charge(place, now)
        self._enter(place, urgent, now)
        places, cells = self._views(now), self._cells
        held, owed = now - cells.head(Head.BEGAN), cells.head(Head.OWED)
        following = displacing(places, place, held, cells.head(Head.IS_OWED) > 0 and not urgent, owed)
        if following is None:
            is_alone = not any(one.wants for one in places.values())
            seconds = min(due_in(places, place, held, owed, cells.head(Head.FLOOR)), MOST_BLIND_SECONDS)
            cells.set_head(Head.LOOK_AT, math.inf if is_alone else now + seconds)
            return None
        self._leave(place, slice_seconds, now)
        cells.set(place, Cell.WANTS, 1)
        self._grant(following, now)
        return following.place

    def end(self, place: int, slice_seconds: float, returns: bool, now: float) -> None:
        """It gives its turn away, if it has it; `pass_turn` next. returns: it has more to do at once."""
        if self.holder != place:
            return
        self._charge(place, now)
        self._leave(place, slice_seconds, now)
        self._cells.set(place, Cell.RETURNS_AT, now + RETURN_SECONDS if returns else 0)
        self._cells.set_head(Head.HOLDER, 0)

    def _grant(self, following: Next, now: float) -> None:
        place, cells, kind = following.place, self._cells, self._class(following.place)
        cells.set_head(Head.REACHED + kind, max(cells.head(Head.REACHED + kind), self.used(place)))
        cells.set_head(Head.BEGAN, now)
        cells.set_head(Head.CHARGED, now)
        cells.set_head(Head.IS_OWED, following.owed)
        cells.set_head(Head.LOOK_AT, 0)
        cells.set_head(Head.HOLDER, place + 1)
        cells.set(place, Cell.WANTS, 0)
        cells.set(place, Cell.RETURNS_AT, 0)

    def _charge(self, place: int, now: float) -> None:
        """For what it has computed since it was charged last."""
        cells, kind, since = self._cells, self._class(place), self._cells.head(Head.CHARGED)
        seconds = max(0.0, now - since)
        cells.set_head(Head.CHARGED, now)
        if not self._urgent_comes(since):  # what was owed is paid: this goes on since no other place wants the turn
            cells.set_head(Head.IS_OWED, 0)
        cells.set(place, Cell.USED + kind, self.used(place) + seconds / cells.of(place, Cell.WEIGHT))
        waits = any(one != place and not self._class(one) for one in self._wanting())
        owed, floor, is_owed = (cells.head(name) for name in (Head.OWED, Head.FLOOR, Head.IS_OWED))
        owed = owed_after(owed, seconds, floor, urgent=bool(kind), waits=waits, is_owed=is_owed > 0)
        cells.set_head(Head.OWED, owed)

    def _enter(self, place: int, urgent: bool, now: float) -> None:
        """It wants the turn, or has it, as one of this class from now on, if it did not before."""
        cells, before = self._cells, self._class(place)
        if self._is_active(place):
            if before == urgent:
                return
            cells.set(place, Cell.LEFT + before, now)
        used, reached = cells.of(place, Cell.USED + urgent), cells.head(Head.REACHED + urgent)
        if now - cells.of(place, Cell.LEFT + urgent) > AWAY_SECONDS:
            resting = [one for one, left in enumerate(cells.column(Cell.LEFT + urgent)) if now - left <= AWAY_SECONDS]
            others = {*self._wanting(), *resting, self.holder} - {place, None}
            active = [self.used(one) for one in others if one is not None and self._class(one) == urgent]
            used = start(used, active, reached)
        else:
            used = resume(used, cells.of(place, Cell.WEIGHT), reached)
        cells.set(place, Cell.USED + urgent, used)
        cells.set(place, Cell.URGENT, urgent)

    def _leave(self, place: int, slice_seconds: float, now: float) -> None:
        self._cells.set(place, Cell.SLICE, slice_seconds)
        self._cells.set(place, Cell.LEFT + self._class(place), now)

    def _class(self, place: int) -> int:
        """1: urgent; 0: not."""
        return int(self._cells.of(place, Cell.URGENT))

    def _is_active(self, place: int) -> bool:
        return self.wants(place) or self.holder == place

    def _views(self, now: float) -> dict[int, Place]:
        """Those that the rule is about."""
        cells, mine = self._cells, self.holder
        wanting = {place for place in self._wanting() if place != mine}
        expected = {place for place, until in enumerate(cells.column(Cell.RETURNS_AT)) if until > now}
        return {
            place: Place(
                weight=cells.of(place, Cell.WEIGHT),
                used=self.used(place),
                wants=place in wanting,
                urgent=self._class(place) > 0,
                slice_seconds=cells.of(place, Cell.SLICE),
                returns_at=cells.of(place, Cell.RETURNS_AT),
            )
            for place in sorted(wanting | expected | ({mine} if mine is not None else set()))
        }

    def _urgent_comes(self, since: float) -> bool:
        """Return whether an urgent place wants the turn, or was expected back at that time."""
        cells = self._cells
        expected = (place for place, until in enumerate(cells.column(Cell.RETURNS_AT)) if until > since)
        return any(self._class(place) for place in (*self._wanting(), *expected))

    def _wanting(self) -> list[int]:
        return [place for place, wants in enumerate(self._cells.column(Cell.WANTS)) if wants]
