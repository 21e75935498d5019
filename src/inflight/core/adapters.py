"""Adapter slots: which adapters are in memory, for which requests, and which is replaced by one that is requested.

A slot has one adapter, which is loaded beside the steps. A request that needs it joins the queue once it is loaded, and
blocks no other until then. Admitted requests hold their slot until they end. An adapter without holders stays until
another needs its slot, least recently released first. If all slots have holders, the one with the fewest is drained: it
admits no more requests, and those that come for its adapter wait behind the one that is to have the slot. Adapters are
loaded in the order in which they were first requested.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from inflight.core.types.plan import AdapterLoad
from inflight.core.types.sampling import Adapter


class _Slot(Struct):
    number: int  # its index
    adapter: Adapter | None = None  # None before the first
    transfer_id: int | None = None  # of its load, while that is in flight
    is_draining: bool = False  # whether it admits no requests
    released: int = 0  # count of releases when its last holder ended
    holders: dict[str, None] = field(default_factory=dict)  # ids of requests, in the order in which they were admitted


class AdapterSlots:
    def __init__(self, count: int, new_transfer_id: Callable[[], int]):
        """new_transfer_id: returns the engine's next one."""
        self.loads = 0  # since the engine began
        self._slots = [_Slot(number) for number in range(count)]
        self._new_transfer_id = new_transfer_id
        self._waiting: dict[Adapter, list[str]] = {}  # ids of requests without a slot, in the order in which they came
        self._by_request: dict[str, _Slot] = {}  # of admitted ones
        self._in_flight: dict[int, _Slot] = {}  # by transfer_id
        self._planned: list[AdapterLoad] = []
        self._releases = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Transfer ids of loads in flight."""
        return tuple(self._in_flight)

    @property
    def loaded(self) -> tuple[tuple[Adapter, int], ...]:
        """Loaded adapters, and how many requests hold each."""
        slots = ((one.adapter, len(one.holders)) for one in self._slots if one.transfer_id is None)
        return tuple((adapter, holders) for adapter, holders in slots if adapter is not None)

    @property
    def wanted(self) -> tuple[Adapter, ...]:
        """Adapters that requests wait for: those being loaded, then those without a slot."""
        loading = (slot.adapter for slot in self._slots if slot.adapter is not None and slot.transfer_id is not None)
        return (*loading, *self._waiting)

    def slot_of(self, request_id: str) -> int:
        """Return the slot of an admitted request."""
        return self._by_request[request_id].number

    def acquire(self, request_id: str, adapter: Adapter) -> bool:
        """Admit a request to its adapter's slot, now or later.

        Returns:
            Whether the adapter is loaded; otherwise `start_loads` or `finish_load` names the request.
        """
        slot = next((one for one in self._slots if one.adapter == adapter and not one.is_draining), None)
        if slot is None:
            self._waiting.setdefault(adapter, []).append(request_id)
            return False
        self._admit(slot, request_id)
        return slot.transfer_id is None

    def release(self, request_id: str, adapter: Adapter) -> None:
        """Forget a request that has ended, wherever it was."""
        slot = self._by_request.pop(request_id, None)
        if slot is not None:
            del slot.holders[request_id]
            self._releases += 1
            slot.released = self._releases
        elif request_id in (waiting := self._waiting.get(adapter, [])):
            waiting.remove(request_id)
            if not waiting:
                del self._waiting[adapter]

    def start_loads(self) -> tuple[str, ...]:
        """Load wanted adapters into free slots with the plan under construction; drain as many slots as others need.

        Returns:
            Requests whose adapter is loaded after all, since the slot is not needed for another any more.
        """
        ready: list[str] = []
        without_slot = 0
        for adapter in tuple(self._waiting):
            free = [one for one in self._slots if not one.holders and one.transfer_id is None]
            loaded = next((one for one in self._slots if one.adapter == adapter), None)
            if loaded is not None and sum(one.is_draining for one in self._slots) > without_slot:
                ready += self._waiting[adapter]
                self._admit_waiting(loaded, adapter)
            elif free:
                self._load(min(free, key=lambda one: (one.adapter is not None, one.released)), adapter)
            else:
                without_slot += 1
        self._drain(without_slot)
        return tuple(ready)

    def take_loads(self) -> tuple[AdapterLoad, ...]:
        """Return the loads of the plan that is complete, and count them as in flight."""
        if not self._planned:
            return ()
        planned, self._planned = self._planned, []
        self._in_flight |= {load.transfer_id: self._slots[load.slot] for load in planned}
        return tuple(planned)

    def finish_load(self, transfer_id: int, succeeded: bool) -> tuple[str, ...]:
        """End a load.

        Returns:
            Requests that waited for it. They may join the queue, or, if it failed, are to end.
        """
        slot = self._in_flight.pop(transfer_id)
        slot.transfer_id = None
        if not succeeded:
            slot.adapter = None
        return tuple(slot.holders)

    def _drain(self, count: int) -> None:
        """Drain so many slots, those with the fewest holders."""
        held = [one for one in self._slots if one.holders and one.transfer_id is None]
        for index, slot in enumerate(sorted(held, key=lambda one: (len(one.holders), one.released))):
            slot.is_draining = index < count

    def _load(self, slot: _Slot, adapter: Adapter) -> None:
        slot.adapter, slot.transfer_id = adapter, self._new_transfer_id()
        self._admit_waiting(slot, adapter)
        self._planned.append(AdapterLoad(slot.transfer_id, slot.number, adapter))
        self.loads += 1

    def _admit_waiting(self, slot: _Slot, adapter: Adapter) -> None:
        slot.is_draining = False
        for request_id in self._waiting.pop(adapter):
            self._admit(slot, request_id)

    def _admit(self, slot: _Slot, request_id: str) -> None:
        slot.holders[request_id] = None
        self._by_request[request_id] = slot
