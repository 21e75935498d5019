"""Shares of the time, over arrivals of all kinds: by weight, the floor and no more, and nobody waits for ever."""

from __future__ import annotations

import math
from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from inflight.engine.turns.accounts import Accounts
from inflight.engine.turns.cells import Cells
from inflight.engine.turns.rule import LEAST_HOLD_SECONDS

from .simulated import Engine, Simulation

MILLISECONDS = 0.001


def accounts_of(places: int, floor: float = 0.01) -> Accounts:
    accounts = Accounts(Cells(array("d", bytes(8 * Cells.numbers(places)))))
    accounts.set_floor(floor)
    for place in range(places):
        accounts.attach(place, 1.0)
    return accounts


layer_seconds = st.floats(0.5 * MILLISECONDS, 2 * MILLISECONDS)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.floats(1, 4), layer_seconds, st.floats(0, 0.5)), min_size=2, max_size=4),
    st.booleans(),
)
def test_equals_share_by_weight(given_engines: list[tuple[float, float, float]], urgent: bool) -> None:
    engines = [
        Engine(weight, urgent, seconds, layers=math.ceil(20 * MILLISECONDS / seconds), begins=begins)
        for weight, seconds, begins in given_engines
    ]
    simulation = Simulation(engines)
    simulation.run(0.6)
    before = [one.computed for one in engines]
    simulation.run(3.0)
    virtual = [(one.computed - was) / one.weight for one, was in zip(engines, before, strict=True)]
    one_slice = LEAST_HOLD_SECONDS + max(one.layer_seconds for one in engines)
    assert max(virtual) - min(virtual) < 4 * one_slice  # two at the beginning, and two at the end


@settings(deadline=None, max_examples=12)
@given(
    floor=st.floats(0.005, 0.08),
    urgent=st.tuples(layer_seconds, st.integers(1, 30), st.floats(0, 1.5 * MILLISECONDS)),
    other=st.tuples(st.floats(0.5 * MILLISECONDS, 20 * MILLISECONDS), st.integers(1, 30)),
    others=st.integers(1, 3),
)
def test_the_others_have_their_floor_and_no_more(
    floor: float, urgent: tuple[float, int, float], other: tuple[float, int], others: int
) -> None:
    first = Engine(1.0, True, urgent[0], urgent[1], gap=urgent[2])
    behind = [Engine(1.0, False, *other) for _ in range(others)]
    Simulation([first, *behind], floor).run(10.0)
    share = sum(one.computed for one in behind) / (first.computed + sum(one.computed for one in behind))
    at_once = (other[0] + 2 * MILLISECONDS) / first.computed  # what is owed is had once it is worth a slice
    assert floor * 0.9 - at_once < share < floor * 1.05 + at_once


any_engine = st.builds(
    Engine,
    weight=st.floats(0.2, 5),
    urgent=st.booleans(),
    layer_seconds=st.floats(0.5 * MILLISECONDS, 10 * MILLISECONDS),
    layers=st.integers(1, 30),
    gap=st.floats(0, 4 * MILLISECONDS),
    begins=st.floats(0, 5),
    steps=st.integers(1, 50),
    pause=st.floats(0, 2),
)


def longest_wait(engine: Engine, engines: list[Engine], floor: float) -> float:
    """Seconds between two turns that shares leave: each of its class has its own for a step of this engine's, which
    nobody came between if it was alone, and a turn that had begun; and of the time that class has what the floor leaves
    it."""
    alike = [one for one in engines if one.urgent == engine.urgent]
    turn, step = LEAST_HOLD_SECONDS + max(one.layer_seconds for one in engines), engine.layers * engine.layer_seconds
    of_class = (LEAST_HOLD_SECONDS + step) * sum(one.weight for one in alike) / engine.weight + turn * len(alike)
    is_alone = len(alike) == len(engines)
    return of_class / (1.0 if is_alone else 1 - floor if engine.urgent else floor)


@settings(deadline=None, max_examples=15)
@given(st.lists(any_engine, min_size=2, max_size=5))
def test_nobody_waits_for_ever(engines: list[Engine]) -> None:
    simulation = Simulation(engines, floor=0.05)
    simulation.run(15.0)
    for engine in engines:
        waits = [*engine.waited, *([] if engine.wanted_since is None else [simulation.now - engine.wanted_since])]
        assert waits and max(waits) < 1.0 + 1.5 * longest_wait(engine, engines, 0.05)


@pytest.mark.parametrize("urgent", [True, False])
def test_an_engine_that_uses_the_rests_of_another_is_not_shut_out_by_later_ones(urgent: bool) -> None:
    """The light one has more than its share while the second one rests for 4 ms a step; then a heavy one comes."""
    light = Engine(0.2, urgent, 10 * MILLISECONDS, layers=1, gap=4 * MILLISECONDS)
    second = Engine(2.7, urgent, layers=15, gap=4 * MILLISECONDS)
    heavy = Engine(5.0, urgent, 10 * MILLISECONDS, layers=30, begins=5.01)
    simulation = Simulation([light, second, heavy])
    simulation.run(15.0)
    waits_since = simulation.now if light.wanted_since is None else light.wanted_since
    longest = max(*light.waited, simulation.now - waits_since)
    assert longest < 1.5 * longest_wait(light, simulation.engines, 0.01)


def test_a_newcomer_starts_beside_one_that_rests_for_a_moment() -> None:
    """The other one that is at work is far ahead of both: it has just computed for a second."""
    accounts = accounts_of(3)
    accounts.want(1, True, 0.0)
    accounts.pass_turn(0.0)
    accounts.want(0, True, 0.0)
    assert accounts.displaced(1, True, 0.001, 1.0) == 0
    accounts.end(0, 0.001, False, 1.001)
    accounts.want(2, True, 1.002)
    assert (accounts.used(0), accounts.used(1)) == (pytest.approx(0.001), 1.0)
    assert accounts.used(2) == pytest.approx(0.001)


def test_time_that_no_urgent_engine_wants_is_not_taken_from_the_floor() -> None:
    """A turn that was owed to the second place goes on for long, since the urgent one does not come back."""
    accounts = accounts_of(2, floor=0.05)
    accounts.want(0, True, 0.0)
    accounts.pass_turn(0.0)
    accounts.want(1, False, 0.0)
    assert accounts.displaced(0, True, 0.001, 0.1) == 1
    accounts.withdraw(0, 0.101)
    assert accounts.displaced(1, False, 0.001, 0.102) is None
    accounts.want(0, True, 0.4)
    assert accounts.displaced(1, False, 0.001, 0.401) == 0
    assert accounts.displaced(0, True, 0.001, 0.431) == 1


def test_time_asleep_is_not_made_up_for() -> None:
    """Somebody computed alone for long, and stands far ahead; somebody comes who never did: they share from then on."""
    engines = [Engine(layers=20), Engine(layers=20, begins=4.0)]
    simulation = Simulation(engines)
    simulation.run(6.0)
    assert engines[1].computed == pytest.approx(1.0, abs=0.05)


def test_who_comes_first_after_a_rest_has_no_advantage() -> None:
    """Nobody is at work when the one comes that had less."""
    engines = [Engine(steps=200, pause=1.0), Engine(begins=4.5)]
    simulation = Simulation(engines)
    simulation.run(7.0)  # the first one's four seconds are over, and it comes back at 5
    assert engines[0].computed == pytest.approx(5.0, abs=0.05)


def test_what_was_computed_for_others_is_not_held_against_urgent_work() -> None:
    """A place that was behind in the background for long does not shut out the others once its work is urgent."""
    engines = [Engine(), Engine(urgent=False)]
    simulation = Simulation(engines)
    simulation.run(5.0)
    assert engines[1].computed < 0.15
    before = [one.computed for one in engines]
    engines[1].urgent = True
    simulation.accounts.want(1, True, simulation.now)
    simulation.run(2.0)
    gained = [one.computed - was for one, was in zip(engines, before, strict=True)]
    assert gained == pytest.approx([1.0, 1.0], abs=0.05)


def test_an_urgent_one_comes_between_the_layers_of_others() -> None:
    engines = [Engine(urgent=False, layers=1000), Engine(begins=0.5, steps=1, pause=0.5)]
    Simulation(engines).run(3.0)
    assert max(engines[1].waited) <= engines[0].layer_seconds
    assert engines[0].computed > 2.5


def test_whoever_is_cleared_has_the_turn_no_more() -> None:
    accounts = accounts_of(3)
    for place in range(3):
        accounts.want(place, True, 0.0)
    assert accounts.pass_turn(0.0) == 0 == accounts.holder
    assert accounts.pass_turn(0.0) is None
    accounts.clear(0)
    assert accounts.pass_turn(1.0) == 1 == accounts.holder
    assert not accounts.is_attached(0)
    accounts.end(0, 0.0, True, 2.0)  # who was cleared and does not know
    assert accounts.holder == 1
    accounts.clear(2)
    accounts.withdraw(1, 3.0)
    assert accounts.pass_turn(3.0) is None and accounts.holder is None


def test_who_is_to_come_when_nobody_is_expected_any_more() -> None:
    accounts = accounts_of(2, floor=0)
    accounts.want(0, True, 0.0)
    accounts.pass_turn(0.0)
    accounts.want(1, False, 0.5)
    accounts.end(0, 0.01, returns=True, now=1.0)
    assert accounts.pass_turn(1.0) == 1 and accounts.holder is None
    assert 1.0 < (free_at := accounts.free_at(1.0)) < 1.01
    assert accounts.pass_turn(free_at) == 1 == accounts.holder


def test_the_holder_looks_when_somebody_comes() -> None:
    accounts = accounts_of(2)
    accounts.want(0, True, 0.0)
    accounts.pass_turn(0.0)
    assert accounts.displaced(0, True, 0.001, 0.001) is None and accounts.look_at == math.inf
    accounts.want(1, False, 0.002)
    assert accounts.look_at < 0.003
    assert accounts.displaced(0, True, 0.001, 0.003) is None and 0.004 < accounts.look_at < 0.03
    accounts.want(1, True, 0.005)
    assert accounts.displaced(0, True, 0.001, 0.006) == 1 == accounts.holder and accounts.wants(0)


def test_numbers_that_are_none_are_refused() -> None:
    accounts = accounts_of(1)
    with pytest.raises(ValueError, match=r"weight of place 0 is 0; give a number above 0"):
        accounts.attach(0, 0)
    with pytest.raises(ValueError, match=r"floor is 1; give a share"):
        accounts.set_floor(1)
