"""The executor that takes turns: one for each step that computes, given back whatever comes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, Pending, StepResult, Transferred
from inflight.engine.turns import step_turns
from inflight.engine.turns.step_turns import StepTurns, TurnTakingExecutor
from inflight.engine.turns.table import TurnTable

CAPACITY = Capacity(num_blocks=4, block_size=2, max_rows=2, max_model_len=8, vocab_size=10)
STEP = BatchPlan(0, (Chunk(0, 0, 0, 1, (0,), 1),))


class Done:
    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def result(self) -> StepResult:
        return StepResult(0, (), self._seconds)


class Recording:
    """An executor: notes who has the turn while it computes, and passes it on between two layers."""

    def __init__(self, table: TurnTable, turns: StepTurns) -> None:
        self._table, self._turns = table, turns
        self.holders: list[int | None] = []
        self.fault: Exception | None = None
        self.is_closed = False
        self.capacity = CAPACITY

    def submit(self, plan: BatchPlan) -> Pending:
        for _ in range(3):
            self._turns.pass_on()
            self.holders.append(self._table.accounts.holder)
        if self.fault is not None:
            raise self.fault
        return Done()

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return (Transferred(7),)

    def close(self) -> None:
        self.is_closed = True


class Rig:
    def __init__(self) -> None:
        self.table = TurnTable.create(3)
        self.turns = StepTurns(self.table, 1, 2.0)
        self.recording = Recording(self.table, self.turns)
        self.is_urgent = True
        self.executor = TurnTakingExecutor(self.recording, self.turns, lambda: self.is_urgent)

    @property
    def is_expected(self) -> bool:
        return self.table.accounts.free_at(time.monotonic()) > 0


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.table.close()


def test_a_step_has_the_turn_while_it_computes(rig: Rig) -> None:
    rig.executor.submit(STEP).result()
    rig.executor.submit(STEP)
    assert rig.recording.holders == [1] * 6
    assert rig.table.accounts.holder is None
    assert rig.table.accounts.used(1) > 0


def test_a_plan_that_computes_nothing_takes_none(rig: Rig) -> None:
    rig.executor.submit(BatchPlan(0, (), freed_rows=(1,)))
    assert rig.recording.holders == [None] * 3


def test_the_turn_is_given_back_whatever_is_raised(rig: Rig) -> None:
    for fault in (ValueError("broken"), KeyboardInterrupt()):
        rig.recording.fault = fault  # type: ignore[assignment]
        with pytest.raises(type(fault)):
            rig.executor.submit(STEP)
        assert rig.table.accounts.holder is None
    rig.recording.fault = None
    rig.executor.submit(STEP)


def test_urgent_work_is_expected_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.engine.turns.accounts.RETURN_SECONDS", 60.0)
    rig.executor.submit(STEP)
    assert rig.is_expected
    rig.is_urgent = False
    rig.executor.submit(STEP)
    assert not rig.is_expected


def test_what_takes_no_turn_goes_through_and_closing_frees_the_place(rig: Rig) -> None:
    assert rig.executor.capacity is CAPACITY
    assert rig.executor.poll() == (Transferred(7),)
    assert rig.table.accounts.is_attached(1)
    rig.executor.close()
    assert rig.recording.is_closed and not rig.table.accounts.is_attached(1)
    rig.turns.pass_on()
    rig.turns.give()


def test_whoever_is_broken_off_while_it_waits_wants_no_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another has the turn, and lives as far as one can see."""
    monkeypatch.setattr(rig.table, "is_alive", lambda place: True)
    with rig.table as accounts:
        accounts.attach(0, 1.0)
        accounts.want(0, True, time.monotonic())
        assert accounts.pass_turn(time.monotonic()) == 0
    waits = 0

    def interrupt(seconds: float) -> None:
        nonlocal waits
        waits += 1
        assert rig.table.accounts.wants(1)
        if waits == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(rig.table, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.executor.submit(STEP)
    assert rig.table.accounts.holder == 0 and not rig.table.accounts.wants(1)
    assert rig.recording.holders == []


def test_work_becomes_urgent_while_it_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before another urgent one is through, which is expected back for long."""
    rig.is_urgent = False
    monkeypatch.setattr("inflight.engine.turns.accounts.RETURN_SECONDS", 60.0)
    with rig.table as accounts:
        accounts.attach(0, 1.0)
        accounts.want(0, True, time.monotonic())
        accounts.pass_turn(time.monotonic())
        accounts.end(0, 0.001, True, time.monotonic())
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        rig.is_urgent = len(waited) == 2

    monkeypatch.setattr(rig.table, "wait", wait)
    rig.executor.submit(STEP)
    assert waited == [step_turns._ASK_SECONDS] * 2
    assert rig.recording.holders == [1] * 3


def test_time_that_others_had_is_not_the_steps(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is learnt of steps is what they take alone."""
    rig.turns.away_seconds = 9.0  # of a turn before this one
    away = 0.0

    def taking_long(plan: BatchPlan) -> Pending:
        rig.turns.away_seconds += away
        return Done(1.0)

    monkeypatch.setattr(rig.recording, "submit", taking_long)
    for away, seconds in ((0.0, 1.0), (0.75, 0.25), (2.0, 0.0)):  # noqa: B007  read above
        assert rig.executor.submit(STEP).result().seconds == seconds
