"""Adapter slots: which adapters the executor holds, for whom, and which of them gives way to one that is asked for.

A slot holds one adapter. It is loaded by a transfer, beside the steps, and whoever asked for it joins the queue when it
is there; until then they wait outside of the queue, and hold nobody up. A slot is held by the requests that were let
in, from then to their ends, whether they run or wait. An adapter that nobody holds stays until another needs its slot,
the one that was left longest ago first. Where all slots are held, the one with the fewest holders lets nobody in any
more: who comes for its adapter now waits for its turn, behind the one that is to have the slot.

Knows requests' ids and adapters; not what an adapter is, nor lanes and ranks: adapters are loaded in the order in which
they were first asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from inflight.core.types.plan import AdapterLoad
from inflight.core.types.sampling import Adapter


class _Slot(Struct):
    """adapter: None before the first. transfer_id: of its load, while that is under way. drains: nobody is let in.
    left: a count that says when its last holder left. holders: ids of requests, in the order in which they were let
    in."""

    number: int
    adapter: Adapter | None = None
    transfer_id: int | None = None
    drains: bool = False
    left: int = 0
    holders: dict[str, None] = field(default_factory=dict)


class AdapterSlots:
    def __init__(self, count: int, new_transfer_id: Callable[[], int]):
        """new_transfer_id(): the next number of a transfer."""
        self.loads = 0  # since the engine began
        self._slots = [_Slot(number) for number in range(count)]
        self._new_transfer_id = new_transfer_id
        self._wanted: dict[Adapter, list[str]] = {}  # ids of requests, in the order in which they came
        self._of: dict[str, _Slot] = {}  # of requests that were let in
        self._out: dict[int, _Slot] = {}  # by transfer_id
        self._asked: list[AdapterLoad] = []
        self._departures = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def out(self) -> tuple[int, ...]:
        """transfer_ids of loads that are under way."""
        return tuple(self._out)

    @property
    def held(self) -> tuple[tuple[Adapter, int], ...]:
        """The adapters that are there, and how many requests hold each."""
        slots = ((one.adapter, len(one.holders)) for one in self._slots if one.transfer_id is None)
        return tuple((adapter, holders) for adapter, holders in slots if adapter is not None)

    @property
    def wanted(self) -> tuple[Adapter, ...]:
        """Those that requests wait for: that are being loaded, and that have no slot yet."""
        loading = (slot.adapter for slot in self._slots if slot.adapter is not None and slot.transfer_id is not None)
        return (*loading, *self._wanted)

    def slot_of(self, request_id: str) -> int:
        return self._of[request_id].number

    # -- requests -----------------------------------------------------------------------------------------------

    def arrive(self, request_id: str, adapter: Adapter) -> bool:
        """A request asks for its adapter. Returns whether that is there; otherwise `ended` will tell of it."""
        slot = next((one for one in self._slots if one.adapter == adapter and not one.drains), None)
        if slot is None:
            self._wanted.setdefault(adapter, []).append(request_id)
            return False
        self._let_in(slot, request_id)
        return slot.transfer_id is None

    def leave(self, request_id: str, adapter: Adapter) -> None:
        """The request has ended, wherever it was."""
        slot = self._of.pop(request_id, None)
        if slot is not None:
            del slot.holders[request_id]
            self._departures += 1
            slot.left = self._departures
        elif request_id in (waiting := self._wanted.get(adapter, [])):
            waiting.remove(request_id)
            if not waiting:
                del self._wanted[adapter]

    # -- steps --------------------------------------------------------------------------------------------------

    def begin_loads(self) -> tuple[str, ...]:
        """With the plan under construction, as many of those that are wanted as there are slots for; as many slots as
        others wait for drain. Returns requests that need not wait for a load any more: whoever should have had the slot
        has another, or has gone."""
        ready: list[str] = []
        waiting = 0  # of those that were looked at: without a slot
        for adapter in tuple(self._wanted):
            free = min(
                (one for one in self._slots if not one.holders and one.transfer_id is None), key=_left, default=None
            )
            there = next((one for one in self._slots if one.adapter == adapter), None)
            if there is not None and sum(one.drains for one in self._slots) > waiting:
                ready += self._wanted[adapter]
                self._take_in(there, adapter)
            elif free is not None:
                self._load(free, adapter)
            else:
                waiting += 1
        self._drain_for(waiting)
        return tuple(ready)

    def drain(self) -> tuple[AdapterLoad, ...]:
        """Those of the plan that is finished."""
        if not self._asked:
            return ()
        asked, self._asked = self._asked, []
        self._out |= {load.transfer_id: self._slots[load.slot] for load in asked}
        return tuple(asked)

    def ended(self, transfer_id: int, done: bool) -> tuple[str, ...]:
        """A load has ended; done: it did not fail. Returns the requests that have waited for it, and are let in or, if
        it failed, are to end."""
        slot = self._out.pop(transfer_id)
        slot.transfer_id = None
        if not done:
            slot.adapter = None
        return tuple(slot.holders)

    def _drain_for(self, waiting: int) -> None:
        """So many slots let nobody in, those with the fewest holders."""
        held = [one for one in self._slots if one.holders and one.transfer_id is None]
        for place, slot in enumerate(sorted(held, key=_fewest)):
            slot.drains = place < waiting

    def _load(self, slot: _Slot, adapter: Adapter) -> None:
        slot.adapter, slot.transfer_id = adapter, self._new_transfer_id()
        self._take_in(slot, adapter)
        self._asked.append(AdapterLoad(slot.transfer_id, slot.number, adapter))
        self.loads += 1

    def _take_in(self, slot: _Slot, adapter: Adapter) -> None:
        """All that wait for it."""
        slot.drains = False
        for request_id in self._wanted.pop(adapter):
            self._let_in(slot, request_id)

    def _let_in(self, slot: _Slot, request_id: str) -> None:
        slot.holders[request_id] = None
        self._of[request_id] = slot


def _left(slot: _Slot) -> tuple[bool, int]:
    return slot.adapter is not None, slot.left


def _fewest(slot: _Slot) -> tuple[int, int]:
    return len(slot.holders), slot.left
