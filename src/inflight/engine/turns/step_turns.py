"""Step turns: an engine's steps compute when it is this process's turn, and give way between two layers.

Knows the table, and that a step computes in `submit`; not who the others are. Who waits for its turn is woken by
whoever gives it away, and looks by itself from time to time: for a holder that has died, and for work of its own that
has become urgent meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from inflight.core.types.plan import BatchPlan, Capacity, Executor, Pending, StepResult, Transferred
from inflight.engine.turns.accounts import Accounts
from inflight.engine.turns.table import TurnTable

_LOOK_SECONDS = 0.05  # between two looks of a waiter that nobody wakes
_ASK_SECONDS = 0.01  # the same, of one whose work may become urgent

Urgent = Callable[[], bool]


class StepTurns:
    """Of one engine process, and used by one of its threads."""

    def __init__(self, table: TurnTable, place: int, weight: float = 1.0):
        """Raises ValueError as `TurnTable.attach` does."""
        self._table, self._place, self._weight = table, place, weight
        self._accounts = table.accounts
        self._urgent: Urgent = bool
        self._has = False
        self._is_urgent = False
        self._patience = _LOOK_SECONDS  # of the next wait
        self.away_seconds = 0.0  # of the last turn, that others had between two layers
        self._looked = self._stretch = 0.0  # when others were last given a chance; the longest time without
        table.attach(place, weight, time.monotonic())

    def take(self, urgent: Urgent) -> None:
        """Returns when it is this process's turn. urgent: whether somebody waits for what it computes; asked again
        while it waits, and at `pass_on`."""
        assert not self._has, "a turn is given before the next one is taken"
        self._urgent = urgent
        self._stretch = self.away_seconds = 0.0
        self._wait(is_told=False)

    def give(self, returns: bool = False) -> None:
        """The turn is over, if there is one. returns: somebody waits for more, which is to be computed at once."""
        if not self._has:
            return
        self._has = False
        now = time.monotonic()
        with self._table as accounts:
            accounts.end(self._place, max(self._stretch, now - self._looked), returns, now)
            following = accounts.pass_turn(now)
        self._table.wake(following)

    def pass_on(self) -> None:
        """Between two layers: where another place is due, it has its turn first. Does nothing without a turn."""
        if not self._has:
            return
        now = time.monotonic()
        if now - self._looked > self._stretch:
            self._stretch = now - self._looked
        self._looked = now
        if now >= self._accounts.look_at:
            self._give_way(now)

    def close(self) -> None:
        """The place is free."""
        self._has = False
        self._table.detach(time.monotonic())

    def _give_way(self, now: float) -> None:
        urgent = self._urgent()
        with self._table as accounts:
            has_lost = accounts.holder != self._place  # who cleared the place was wrong
            following = None if has_lost else accounts.displaced(self._place, urgent, self._stretch, now)
        if has_lost or following is not None:
            self._has, self._is_urgent, self._stretch = False, urgent, 0.0
            self._table.wake(following)
            self._wait(is_told=not has_lost)
            self.away_seconds += time.monotonic() - now

    def _wait(self, is_told: bool) -> None:
        """Until it is this one's turn. is_told: the accounts know already that it wants it."""
        try:
            if not is_told:
                self._look(is_told=False)
            while not self._has:
                self._table.wait(self._patience)
                self._look(is_told=True)
        except BaseException:
            self._withdraw()
            raise
        self._looked = time.monotonic()

    def _look(self, is_told: bool) -> None:
        """Whether it is this one's turn now, and how long to wait where it is not."""
        urgent, following = self._urgent(), None
        with self._table as accounts:
            now = time.monotonic()
            if accounts.holder != self._place:
                self._say(accounts, urgent, is_told, now)
                holder = accounts.holder
                if holder is not None and not self._table.is_alive(holder):
                    accounts.clear(holder)
                following = accounts.pass_turn(now)
            self._has = accounts.holder == self._place
            patience = _LOOK_SECONDS if urgent else _ASK_SECONDS
            if accounts.holder is None:
                patience = min(patience, accounts.free_at(now) - now)
        self._patience = patience
        self._table.wake(following)

    def _say(self, accounts: Accounts, urgent: bool, is_told: bool, now: float) -> None:
        """That it wants the turn, where the accounts do not know."""
        if not accounts.is_attached(self._place):  # who cleared the place was wrong
            accounts.attach(self._place, self._weight)
        if not is_told or urgent != self._is_urgent or not accounts.wants(self._place):
            self._is_urgent = urgent
            accounts.want(self._place, urgent, now)

    def _withdraw(self) -> None:
        self._has = False
        now = time.monotonic()
        with self._table as accounts:
            accounts.withdraw(self._place, now)
            following = accounts.pass_turn(now)
        self._table.wake(following)


class _OwnTime:
    """A step's result without the time that others had: what is learnt of steps is what they take alone."""

    def __init__(self, pending: Pending, away_seconds: float):
        self._pending, self._away_seconds = pending, away_seconds

    def result(self) -> StepResult:
        result = self._pending.result()
        return replace(result, seconds=max(0.0, result.seconds - self._away_seconds))


class TurnTakingExecutor:
    """Steps of an executor that computes them in `submit`, each in a turn."""

    def __init__(self, executor: Executor, turns: StepTurns, urgent: Urgent):
        """urgent: whether somebody waits for what the engine computes."""
        self._executor, self._turns, self._urgent = executor, turns, urgent

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def submit(self, plan: BatchPlan) -> Pending:
        if not plan.chunks:
            return self._executor.submit(plan)
        self._turns.take(self._urgent)
        try:
            pending = self._executor.submit(plan)
        finally:
            self._turns.give(returns=self._urgent())
        away = self._turns.away_seconds
        return pending if not away else _OwnTime(pending, away)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return self._executor.poll(seconds)

    def close(self) -> None:
        """The place is free, too."""
        try:
            self._executor.close()
        finally:
            self._turns.close()
