"""Who has the turn next, and who gives way."""

from __future__ import annotations

import math

import pytest

from inflight.engine.turns.rule import (
    AWAY_SECONDS,
    LEAST_HOLD_SECONDS,
    LEAST_SLICE_SECONDS,
    MOST_OWED_SECONDS,
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


def place(used: float = 0.0, *, urgent: bool = True, wants: bool = True, **changes: float) -> Place:
    return Place(weight=changes.pop("weight", 1.0), used=used, wants=wants, urgent=urgent, **changes)


BACKGROUND = place(urgent=False)
HOLDS = place(5.0, wants=False)
HOLDS_BEHIND = place(5.0, wants=False, urgent=False)


@pytest.mark.parametrize(
    ("places", "owed", "following"),
    [
        pytest.param({}, 0.0, None, id="nobody wants it"),
        pytest.param(
            {0: place(2), 1: place(1), 2: place(1)}, 0.0, Next(1), id="the least served, the first of several"
        ),
        pytest.param({0: place(9), 1: BACKGROUND}, 0.0, Next(0), id="urgent ones first"),
        pytest.param({1: BACKGROUND}, 0.0, Next(1), id="others where no urgent one wants it"),
        pytest.param({0: place(wants=False, returns_at=10.1), 1: BACKGROUND}, 0.0, None, id="one is expected back"),
        pytest.param({0: place(wants=False, returns_at=10.0), 1: BACKGROUND}, 0.0, Next(1), id="and does not come"),
        pytest.param({0: place(wants=False, returns_at=10.1), 1: place(3)}, 0.0, None, id="equals wait for it"),
        pytest.param({0: place(3, wants=False, returns_at=10.1), 1: place(2)}, 0.0, Next(1), id="not for the others"),
        pytest.param({0: place(wants=False, returns_at=10.0), 1: place(3)}, 0.0, Next(1), id="nor for long"),
        pytest.param(
            {0: place(wants=False, urgent=False, returns_at=10.1), 1: BACKGROUND}, 0.0, Next(1), id="nobody for others"
        ),
        pytest.param({0: place(), 1: BACKGROUND}, 0.001, Next(1, owed=True), id="what is owed comes first"),
        pytest.param(
            {0: place(wants=False, returns_at=10.1), 1: BACKGROUND}, 0.001, Next(1, owed=True), id="at any moment"
        ),
        pytest.param({0: place(), 1: place(urgent=False, slice_seconds=0.02)}, 0.019, Next(0), id="less than a slice"),
        pytest.param(
            {0: place(), 1: place(urgent=False, slice_seconds=9)}, MOST_OWED_SECONDS, Next(1, owed=True), id="the most"
        ),
        pytest.param({1: place(4, urgent=False), 2: place(3, urgent=False)}, 9.0, Next(2), id="nobody is held up"),
    ],
)
def test_who_is_next(places: dict[int, Place], owed: float, following: Next | None) -> None:
    assert next_turn(places, owed, now=10.0) == following


@pytest.mark.parametrize(
    ("places", "held", "is_owed", "owed", "following"),
    [
        pytest.param({0: HOLDS}, 9.0, False, 0.0, None, id="nobody else wants it"),
        pytest.param({0: HOLDS, 1: place(4.9)}, 0.002, False, 0.0, Next(1), id="an equal that had less"),
        pytest.param({0: HOLDS, 1: place(4.9995)}, 0.0019, False, 0.0, None, id="not at once"),
        pytest.param({0: HOLDS, 1: place(4.997)}, 0.0001, False, 0.0, Next(1), id="but if it is far behind"),
        pytest.param({0: HOLDS, 1: place(4.997, weight=0.5)}, 0.0001, False, 0.0, None, id="for its weight"),
        pytest.param({0: HOLDS, 1: place(5.0)}, 9.0, False, 0.0, None, id="not one that had as much"),
        pytest.param({0: HOLDS, 1: BACKGROUND}, 9.0, False, 0.0, None, id="nobody less urgent"),
        pytest.param({0: HOLDS, 1: BACKGROUND}, 0.002, False, 0.001, Next(1, owed=True), id="unless it is owed"),
        pytest.param({0: HOLDS, 1: BACKGROUND}, 0.001, False, 0.001, None, id="and not at once"),
        pytest.param({0: HOLDS_BEHIND, 1: place(9)}, 0.0, False, 9.0, Next(1), id="an urgent one at once"),
        pytest.param({0: HOLDS_BEHIND, 1: place(9)}, 0.0009, True, 0.0, None, id="but what was owed is had"),
        pytest.param({0: HOLDS_BEHIND, 1: place(9)}, LEAST_SLICE_SECONDS, True, 0.0, Next(1), id="and no more"),
        pytest.param({0: HOLDS_BEHIND, 1: BACKGROUND}, LEAST_HOLD_SECONDS, False, 0.0, Next(1), id="of those behind"),
    ],
)
def test_who_gives_way(
    places: dict[int, Place], held: float, is_owed: bool, owed: float, following: Next | None
) -> None:
    assert displacing(places, 0, held, is_owed, owed) == following


@pytest.mark.parametrize(
    ("places", "held", "owed", "seconds"),
    [
        pytest.param({0: HOLDS}, 1.0, 0.0, math.inf, id="nobody comes"),
        pytest.param({0: HOLDS, 1: BACKGROUND}, 1.0, 0.0, 0.001 * 0.99 / 0.01, id="once it is worth a slice"),
        pytest.param({0: HOLDS, 1: place(5.003)}, 1.0, 0.0, 0.003, id="once there is an equal that had less"),
        pytest.param({0: HOLDS, 1: place(5.0)}, 0.0005, 0.0, 0.0015, id="not at once"),
        pytest.param({0: HOLDS_BEHIND, 1: place()}, 0.0004, 0.0, 0.0006, id="once what was owed is had"),
    ],
)
def test_when_to_look_again(places: dict[int, Place], held: float, owed: float, seconds: float) -> None:
    assert due_in(places, 0, held, owed, floor=0.01) == pytest.approx(seconds)


def test_until_when_somebody_is_expected() -> None:
    assert expected_until({0: place(), 1: BACKGROUND}) == 0
    assert expected_until({0: place(wants=False, returns_at=3), 1: place(wants=False, returns_at=4)}) == 4
    assert expected_until({0: place(wants=False, urgent=False, returns_at=3), 1: place(returns_at=4)}) == 0


def test_sleep_saves_up_nothing_and_costs_nothing() -> None:
    assert start(1.0, [7.0, 5.0], 3.0) == 5.0
    assert start(6.0, [7.0, 5.0], 3.0) == 6.0
    assert start(1.0, [7.0, 5.0], 6.0) == 6.0  # one of those at work rested for a while, and has credit from then
    assert start(1.0, [], 9.0) == 9.0


def test_short_rests_save_up_a_bounded_credit() -> None:
    assert resume(8.995, 1.0, 9.0) == 8.995
    assert resume(1.0, 1.0, 9.0) == pytest.approx(9.0 - AWAY_SECONDS)
    assert resume(1.0, 4.0, 9.0) == pytest.approx(9.0 - AWAY_SECONDS / 4)
    assert resume(10.0, 1.0, 9.0) == 10.0


def test_what_is_owed() -> None:
    by_urgent = dict(urgent=True, is_owed=False)
    assert owed_after(0.0, 0.8, 0.01, waits=True, **by_urgent) == pytest.approx(0.8 * 0.01 / 0.99)
    assert owed_after(0.003, 0.8, 0.01, waits=False, **by_urgent) == 0.003
    assert owed_after(0.0, math.inf, 0.01, waits=True, **by_urgent) == MOST_OWED_SECONDS
    by_others = dict(urgent=False, waits=True)
    assert owed_after(0.01, 0.03, 0.01, is_owed=True, **by_others) == pytest.approx(-0.02)
    assert owed_after(0.01, 0.03, 0.01, is_owed=False, **by_others) == 0
    assert owed_after(0.01, 0.004, 0.01, is_owed=False, **by_others) == pytest.approx(0.006)
    assert owed_after(-0.02, 0.03, 0.01, is_owed=False, **by_others) == -0.02
