"""Which models are in memory: a clock that the tests move, and no process."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.server.model_pool.residency import (
    FIRST_RETRY,
    BudgetError,
    Load,
    Residency,
    ResidencyError,
    Unload,
)
from inflight.server.model_pool.resident import HOLD_SWITCHES, ModelNeeds

GIB = 2**30


def needs(name: str, size: float = 1.0, *, pin: bool = False, idle: float | None = None) -> ModelNeeds:
    return ModelNeeds(name=name, nbytes=int(size * GIB), is_pinned=pin, idle_seconds=idle)


def pool(budget: float, *models: ModelNeeds) -> Residency:
    return Residency(models, int(budget * GIB))


def load(residency: Residency, name: str, now: float, seconds: float = 1.0) -> float:
    """Asked for and loaded; when."""
    residency.load(name, now)
    assert residency.decide(now) == [Load(name)]
    residency.loaded(name, GIB, now + seconds)
    return now + seconds


def test_a_model_is_loaded_when_a_call_waits_for_it() -> None:
    residency = pool(2, needs("a"), needs("b"))
    assert residency.decide(0) == [] and not residency.enter("a", 0)
    residency.wait("a", 0)
    assert residency.decide(0) == [Load("a")] and residency.state("a") == "loading"
    assert residency.decide(0.5) == []
    residency.loaded("a", GIB, 2)
    residency.end_wait("a")
    assert residency.enter("a", 2) and residency.seconds_until("a", 2) == 0


def test_both_stay_where_both_fit() -> None:
    residency = pool(2, needs("a"), needs("b"))
    load(residency, "a", 0)
    load(residency, "b", 2)
    assert residency.decide(1000) == [] and residency.nbytes == 2 * GIB


def test_an_idle_model_gives_way_after_what_loading_it_takes() -> None:
    residency = pool(1, needs("a"), needs("b"))
    at = load(residency, "a", 0, seconds=3)
    residency.wait("b", at + 1)
    assert residency.decide(at + 1) == []
    assert residency.next_time(at + 1) == at + 3
    assert residency.decide(at + 3) == [Unload("a")] and residency.decide(at + 3) == []
    residency.ended("a", at + 3)
    assert residency.decide(at + 3) == [Load("b")]


def test_a_busy_one_stays_for_several_switches_and_is_drained() -> None:
    residency = pool(1, needs("a"), needs("b"))
    at = load(residency, "a", 0, seconds=2)
    assert residency.enter("a", at)
    residency.wait("b", at)
    due = residency.next_time(at)
    assert due is not None and due >= at + HOLD_SWITCHES * 2
    assert residency.decide(due - 0.1) == []
    assert residency.decide(due) == [] and residency.state("a") == "draining"
    assert not residency.enter("a", due)
    residency.left("a", 5, due + 1)
    assert residency.decide(due + 1) == [Unload("a")]


def test_a_model_stays_if_the_calls_it_makes_room_for_have_gone() -> None:
    residency = pool(1, needs("a"), needs("b"))
    at = load(residency, "a", 0)
    residency.enter("a", at)
    residency.wait("b", at)
    residency.decide(at + 100)
    assert residency.state("a") == "draining"
    residency.end_wait("b")
    assert residency.decide(at + 101) == [] and residency.state("a") == "loaded"


def test_those_used_longest_ago_give_way_and_no_more_than_need_be() -> None:
    residency = pool(3, needs("a"), needs("b"), needs("c"), needs("large", 2))
    at = 0.0
    for name in ("a", "b", "c"):
        at = load(residency, name, at + 10)
    residency.enter("a", at + 50)
    residency.left("a", 1, at + 51)
    residency.wait("large", at + 100)
    assert residency.decide(at + 100) == [Unload("b"), Unload("c")]


def test_a_pinned_model_is_never_evicted() -> None:
    residency = pool(2, needs("a", pin=True), needs("b"), needs("c"))
    assert residency.decide(0) == [Load("a")]
    residency.loaded("a", GIB, 1)
    at = load(residency, "b", 1)
    residency.wait("c", at)
    assert residency.decide(at + 1000) == [Unload("b")]
    with pytest.raises(ResidencyError, match="pinned"):
        residency.unload("a")


def test_an_idle_model_is_unloaded_after_its_time() -> None:
    residency = pool(2, needs("a", idle=30), needs("b"))
    at = load(residency, "a", 0)
    assert residency.next_time(at) == at + 30
    residency.enter("a", at + 10)
    assert residency.next_time(at + 10) is None
    residency.left("a", 5, at + 15)
    assert residency.decide(at + 44) == []
    assert residency.decide(at + 45) == [Unload("a")]


def test_an_operator_loads_and_unloads() -> None:
    residency = pool(1, needs("a"), needs("b"))
    at = load(residency, "a", 0)
    residency.enter("a", at)
    residency.unload("a")
    assert residency.decide(at) == [] and residency.state("a") == "draining"
    residency.load("a", at)
    assert residency.state("a") == "loaded"
    residency.unload("a")
    residency.left("a", 1, at + 1)
    assert residency.decide(at + 1) == [Unload("a")]
    residency.ended("a", at + 1)
    residency.load("b", at + 1)
    residency.wait("b", at + 1)
    residency.end_wait("b")  # the call that waited beside the operator has gone
    assert residency.decide(at + 1) == [Load("b")]
    with pytest.raises(ResidencyError, match="being loaded"):
        residency.unload("b")


def test_one_that_an_operator_unloads_stays_for_calls_that_come_meanwhile() -> None:
    residency = pool(2, needs("a"), needs("b"))
    at = load(residency, "a", 0)
    residency.enter("a", at)
    residency.unload("a")
    assert residency.decide(at) == [] and residency.state("a") == "draining"
    assert residency.enter("a", at + 1) and residency.state("a") == "loaded"
    residency.left("a", 9, at + 9)
    residency.left("a", 9, at + 10)
    assert residency.decide(at + 10) == []


def test_others_are_loaded_while_calls_keep_one_that_an_operator_unloads() -> None:
    residency = pool(2, needs("a"), needs("b"), needs("c", 2))
    at = load(residency, "a", 0)
    residency.enter("a", at)
    residency.unload("a")
    assert residency.seconds_until("b", at) < 3
    at = load(residency, "b", at)
    residency.wait("c", at)
    later = at + 1000
    assert residency.decide(later) == [] and residency.state("b") == "loaded", "c would not fit without b either"
    assert residency.next_time(later) is None
    residency.left("a", 1000, later)
    assert residency.decide(later) == [Unload("a")]
    residency.ended("a", later)
    assert residency.decide(later) == [Unload("b")]


def test_a_failed_one_is_tried_again_later_and_later() -> None:
    residency = pool(1, needs("a"))
    at = 0.0
    for attempt in range(3):
        residency.wait("a", at)
        assert residency.decide(at) == [Load("a")]
        residency.failed("a", "no such folder", at + 1)
        refusal = residency.refusal("a", at + 1)
        assert refusal == ("no such folder", FIRST_RETRY * 2**attempt)
        assert residency.decide(at + 2) == []
        at = at + 1 + refusal[1]
        assert residency.refusal("a", at) is None
    residency.wait("a", at)
    assert residency.decide(at) == [Load("a")]


def test_one_that_breaks_down_soon_is_not_loaded_at_once() -> None:
    residency = pool(1, needs("a", pin=True))
    assert residency.decide(0) == [Load("a")]
    residency.loaded("a", GIB, 1)
    residency.ended("a", 2, "its process was killed")
    assert residency.decide(2) == [] and residency.next_time(2) == 2 + FIRST_RETRY
    assert residency.decide(2 + FIRST_RETRY) == [Load("a")]
    residency.loaded("a", GIB, 10)
    residency.ended("a", 100, "its process was killed")
    assert residency.decide(100) == [Load("a")]


def test_what_can_never_be_loaded_is_refused_at_once() -> None:
    with pytest.raises(BudgetError, match=r"'b' takes 3.00 GiB, and the budget is 4.00 GiB, of which 1 pinned"):
        pool(4, needs("a", 2, pin=True), needs("b", 3))
    with pytest.raises(BudgetError, match="pin fewer"):
        pool(3, needs("a", 2, pin=True), needs("b", 2, pin=True))


def test_a_model_larger_than_was_thought_still_has_its_turn() -> None:
    residency = pool(2, needs("a"), needs("b"))
    at = load(residency, "b", 0)
    residency.enter("b", at)
    residency.left("b", 0, at)
    residency.load("a", at)
    assert residency.decide(at) == [Load("a")]
    residency.loaded("a", 5 * GIB, at + 1)
    residency.unload("a")
    assert residency.decide(at + 2) == [Unload("a")]
    residency.ended("a", at + 3)
    residency.wait("a", at + 50)
    assert residency.decide(at + 50) == [Unload("b")]
    residency.ended("b", at + 51)
    assert residency.decide(at + 51) == [Load("a")]


def test_the_wait_is_estimated_beforehand() -> None:
    residency = pool(1, needs("a"), needs("b"), needs("c"))
    at = load(residency, "a", 0, seconds=2)
    residency.enter("a", at)
    residency.wait("b", at)
    first = residency.seconds_until("b", at)
    held, loading = HOLD_SWITCHES * (2 + first_guess()), first_guess()
    assert first == pytest.approx(held + loading)
    behind = residency.seconds_until("c", at)  # b has to be held, too
    assert behind > first + HOLD_SWITCHES * loading
    residency.decide(at + held)
    residency.left("a", 1, at + held)
    residency.decide(at + held)
    residency.ended("a", at + held)
    residency.decide(at + held)
    assert residency.seconds_until("b", at + held + 1) == pytest.approx(loading - 1)


def first_guess() -> float:
    return Residency([needs("x")], GIB).seconds_until("x", 0)


def test_a_call_that_is_to_come_again_is_not_forgotten() -> None:
    """However long the wait is expected to be: no call waits, and the model is loaded in its order."""
    residency = pool(1, needs("a"), needs("b"))
    at = load(residency, "a", 0, seconds=65)
    residency.enter("a", at)
    residency.ask("b", at)
    assert residency.decide(at + 1) == []
    due = residency.next_time(at + 1)
    assert due is not None
    residency.decide(due)
    residency.left("a", 120, due)
    assert residency.decide(due) == [Unload("a")]
    residency.ended("a", due)
    assert residency.decide(due) == [Load("b")]


def test_one_that_stays_after_all_has_those_that_wait_for_it() -> None:
    residency = pool(1, needs("a", idle=1), needs("b"))
    at = load(residency, "a", 0)
    residency.enter("a", at)
    residency.wait("b", at)
    residency.decide(at + 100)
    assert residency.state("a") == "draining"
    residency.wait("a", at + 100)  # its next turn
    residency.left("a", 100, at + 101)
    residency.end_wait("b")
    assert residency.decide(at + 200) == [] and residency.state("a") == "loaded"
    residency.end_wait("a")
    assert residency.enter("a", at + 200)


def test_an_operators_wish_ends_when_it_is_fulfilled() -> None:
    residency = pool(1, needs("a"), needs("b"))
    at = load(residency, "a", 0)
    residency.enter("a", at)
    residency.wait("b", at)
    residency.decide(at + 100)
    residency.load("a", at + 100)  # which is being drained
    residency.end_wait("b")
    residency.decide(at + 101)
    assert residency.state("a") == "loaded"
    residency.unload("a")
    residency.left("a", 1, at + 102)
    assert residency.decide(at + 102) == [Unload("a")]
    residency.ended("a", at + 103)
    assert residency.decide(at + 103) == []


# -- a pool at work ---------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Carries decisions out, as a pool does: loads and ends take their time, calls too."""

    residency: Residency
    names: list[str]
    load_seconds: float
    now: float = 0.0
    events: list[tuple[float, int, str, str]] = field(default_factory=list)
    waiting: dict[str, list[float]] = field(default_factory=dict)
    served: int = 0
    loads: int = 0
    serial: int = 0

    def at(self, time: float, what: str, name: str) -> None:
        self.serial += 1
        self.events.append((time, self.serial, what, name))

    def pump(self, seconds: float) -> None:
        for decision in self.residency.decide(self.now):
            if isinstance(decision, Load):
                self.loads += 1
                self.at(self.now + self.load_seconds, "loaded", decision.name)
            else:
                status = self.residency.status(decision.name, self.now)
                assert not status.in_flight and not status.is_pinned
                self.at(self.now + 0.1, "ended", decision.name)
        assert self.residency.nbytes <= self.residency.budget
        for name in [one for one in self.waiting if self.residency.state(one) == "loaded"]:
            self.lend(name, seconds)
        due = self.residency.next_time(self.now)
        if due is not None:
            assert due > self.now or self.residency.decide(self.now) == []
            self.at(max(due, self.now + 1e-6), "look", "")

    def lend(self, name: str, seconds: float) -> None:
        for _ in self.waiting.pop(name, ()):
            self.residency.end_wait(name)
            assert self.residency.enter(name, self.now)
            self.begin(name, seconds)

    def begin(self, name: str, seconds: float) -> None:
        self.served += 1
        self.at(self.now + seconds, "call ended", name)

    def run(self, until: float, call_seconds: float) -> None:
        while self.events and min(self.events)[0] <= until:
            event = min(self.events)
            self.events.remove(event)
            self.now, _, what, name = event
            if what == "call":
                if self.residency.enter(name, self.now):
                    self.begin(name, call_seconds)
                else:
                    self.residency.wait(name, self.now)
                    self.waiting.setdefault(name, []).append(self.now)
            elif what == "loaded":
                self.residency.loaded(name, self.residency.status(name, self.now).nbytes, self.now)
                self.lend(name, call_seconds)
            elif what == "ended":
                self.residency.ended(name, self.now)
            elif what == "call ended":
                self.residency.left(name, call_seconds, self.now)
            self.pump(call_seconds)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=5),
    budget=st.sampled_from([2.0, 3.0, 4.0]),
    rate=st.sampled_from([0.2, 1.0, 5.0]),
    seed=st.integers(0, 2**16),
)
def test_all_calls_are_served_within_the_budget(sizes: list[float], budget: float, rate: float, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"m{place}" for place in range(len(sizes))]
    idle = chance.choice([None, 3.0])
    world = World(
        pool(budget, *(needs(name, size, idle=idle) for name, size in zip(names, sizes, strict=True))),
        names,
        load_seconds=chance.uniform(0.5, 3),
    )
    time, calls = 0.0, 60
    for _ in range(calls):
        time += chance.expovariate(rate)
        world.at(time, "call", chance.choice(names))
    world.run(until=time + 10_000, call_seconds=chance.uniform(0.1, 4))
    assert world.served == calls and not any(world.waiting.values())


def test_two_of_equal_load_and_room_for_one_do_not_thrash() -> None:
    """Loading is at most a fifth of the time, however often they are called."""
    world = World(pool(1, needs("a"), needs("b")), ["a", "b"], load_seconds=2.0)
    chance, time = random.Random(1), 0.0
    while time < 600:
        time += chance.expovariate(4.0)
        world.at(time, "call", chance.choice(["a", "b"]))
    world.run(until=600, call_seconds=1.5)
    assert world.loads > 600 / (2 * HOLD_SWITCHES * 4 * 2)  # both had their turns
    assert world.loads * (world.load_seconds + 0.1) < 600 / (1 + HOLD_SWITCHES) + 5


def test_a_call_says_for_how_long_its_model_stays() -> None:
    residency = pool(2, needs("a", idle=60), needs("b"))
    at = load(residency, "a", 0)
    for seconds, expected in ((None, 60.0), (5.0, 5.0), (math.inf, None)):
        residency.keep_alive("a", seconds)
        assert residency.status("a", at).idle_in == expected
    residency.keep_alive("a", 0.0)
    assert residency.enter("a", at) and residency.decide(at + 1) == [], "it has a call"
    residency.left("a", 1, at + 2)
    assert residency.decide(at + 2) == [Unload("a")]


def test_models_come_and_go() -> None:
    residency = pool(2, needs("a"))
    with pytest.raises(BudgetError):
        residency.add(needs("large", 3))
    residency.add(needs("b"))
    load(residency, "b", 0)
    assert not residency.remove("b"), "it is in memory"
    residency.wait("a", 2)
    assert not residency.remove("a"), "a call waits for it"
    residency.end_wait("a")
    assert residency.remove("a") and residency.decide(3) == []
    residency.unload("b")
    assert residency.decide(3) == [Unload("b")]
    residency.ended("b", 4)
    assert residency.remove("b") and residency.next_time(5) is None
