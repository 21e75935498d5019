"""Adapter slots: which requests are admitted, and which adapters are loaded and replaced."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec import structs

from inflight.core.adapters import AdapterSlots
from inflight.core.types.plan import AdapterLoad, BatchPlan
from inflight.core.types.sampling import Adapter

from .builders import request
from .harness import Harness, Setup

A, B, C, D = (Adapter(name, "") for name in "abcd")


class Slots(AdapterSlots):
    """Loads end when they are asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(count, itertools.count(1).__next__)

    def load(self, done: bool = True) -> list[str]:
        """Return the requests that may join or, after failed loads, end."""
        joined = [*self.start_loads()]
        for load in self.take_loads():
            joined += self.finish_load(load.transfer_id, done)
        return joined

    def serve(self, request_id: str, adapter: Adapter) -> None:
        if not self.acquire(request_id, adapter):
            assert request_id in self.load()

    @property
    def there(self) -> set[str]:
        return {adapter.name for adapter, _ in self.loaded}


def test_an_adapter_is_loaded_once_for_all_that_ask_for_it() -> None:
    slots = Slots(2)
    assert not slots.acquire("1", A) and not slots.acquire("2", A)
    assert slots.start_loads() == ()
    (load,) = slots.take_loads()
    assert load == AdapterLoad(load.transfer_id, load.slot, A)
    assert not slots.acquire("3", A), "it is not there yet"
    assert slots.wanted == (A,) and slots.in_flight == (load.transfer_id,)
    assert slots.finish_load(load.transfer_id, True) == ("1", "2", "3")
    assert slots.acquire("4", A) and slots.wanted == () and slots.loads == 1


def test_the_least_recently_released_one_is_replaced() -> None:
    slots = Slots(2)
    slots.serve("1", A), slots.serve("2", B)
    slots.release("2", B), slots.release("1", A)
    slots.serve("3", C)
    assert slots.there == {"a", "c"}
    slots.serve("4", D)
    assert slots.there == {"c", "d"}, "c is held"


def test_a_held_adapter_is_not_replaced_and_its_newcomers_wait() -> None:
    """The slot with the fewest holders drains for the one that waits; who comes for its adapter is not let in."""
    slots = Slots(2)
    slots.serve("1", A), slots.serve("2", A), slots.serve("3", B)
    assert not slots.acquire("4", C)
    assert slots.load() == []
    assert not slots.acquire("5", B), "it drains"
    assert slots.acquire("6", A), "it does not"
    slots.release("3", B)
    assert slots.load() == ["4"] and slots.there == {"a", "c"}
    assert slots.load() == []
    slots.release("4", C)
    assert slots.load() == ["5"], "the one that waited behind is loaded next"


def test_a_slot_that_need_not_drain_lets_those_in_again_that_waited_for_it() -> None:
    slots = Slots(1)
    slots.serve("1", A)
    assert not slots.acquire("2", B)
    slots.load()
    assert not slots.acquire("3", A)
    slots.release("2", B)  # aborted
    assert slots.load() == ["3"] and slots.loads == 1
    assert slots.acquire("4", A)


def test_a_request_that_has_no_slot_and_waits_for_none_may_be_released() -> None:
    slots = Slots(1)
    slots.release("1", A)
    with pytest.raises(KeyError):
        slots.slot_of("1")


@given(st.data(), st.integers(1, 3))
def test_every_request_gets_its_adapter(data: st.DataObject, count: int) -> None:
    """However requests come and go, none waits for ever, and no more adapters are there than slots."""
    slots, alive, waiting = Slots(count), {}, {}
    for number in range(data.draw(st.integers(1, 30))):
        name, adapter = str(number), data.draw(st.sampled_from([A, B, C, D]))
        (alive if slots.acquire(name, adapter) else waiting)[name] = adapter
        for joined in slots.load():
            alive[joined] = waiting.pop(joined)
        assert len(slots.loaded) <= count
        for ended in data.draw(st.lists(st.sampled_from([*alive, *waiting]), unique=True)) if alive or waiting else ():
            slots.release(ended, (alive.pop(ended, None) or waiting.pop(ended)))
    for _ in range(100):
        for joined in slots.load():
            alive[joined] = waiting.pop(joined)
        if not alive:
            break
        ended = data.draw(st.sampled_from([*alive]))
        slots.release(ended, alive.pop(ended))
    assert not waiting and not alive and all(not holders for _, holders in slots.loaded)


def test_a_batch_begins_with_a_request_whose_slot_is_not_needed_for_another_any_more() -> None:
    """A strategy that names the waiting sees those whose adapter turned out to be loaded in the same plan."""
    harness = Harness(Setup(strategy="static", batch_size=1, max_rows=1, patience=0.0, adapter_slots=1))
    first, second = (request(name, max_tokens=0, output=None) for name in ("first", "second"))
    harness.add(structs.replace(first, adapter=A))
    harness.plan()
    harness.commit()  # A is loaded
    harness.add(structs.replace(second, adapter=B))  # the slot is drained for it
    assert isinstance(harness.plan(), BatchPlan)
    harness.abort("first")
    harness.add(structs.replace(first, request_id="again", adapter=A))
    harness.commit()
    harness.abort("second")
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and plan.chunks
    harness.drain()
