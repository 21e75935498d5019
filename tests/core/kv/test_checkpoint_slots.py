"""Slots for checkpoints: states, order of eviction, and that none is lost or read before it is written."""

from __future__ import annotations

from inflight.core.kv.state_checkpoints import CheckpointKind, CheckpointSlots


def kept(slots: CheckpointSlots, node: int, kind: CheckpointKind = CheckpointKind.NEW, taker: int = 0) -> int:
    """Take a checkpoint in a complete plan, found by the node."""
    slot = slots.take(taker, kind)
    assert slot is not None
    slots.publish(slot, node)
    slots.finish_plan()
    return slot


def found(slots: CheckpointSlots) -> list[int]:
    return [node for node in range(20) if slots.find(node) is not None]


def test_a_checkpoint_is_found_from_the_next_plan_on() -> None:
    slots = CheckpointSlots(1)
    slot = slots.take(0, CheckpointKind.NEW)
    assert slot is not None and slots.used == 1
    slots.publish(slot, 7)
    assert slots.find(7) is None and slots.is_coming(7)
    slots.finish_plan()
    assert slots.find(7) == slot and not slots.is_coming(7)


def test_a_checkpoint_is_found_once_its_tokens_are_known() -> None:
    slots = CheckpointSlots(2)
    slot, other = slots.take(0, CheckpointKind.NEW), slots.take(0, CheckpointKind.NEW)
    assert slot is not None and other is not None
    slots.finish_plan()
    slots.publish(slot, 7)
    slots.free(other)
    assert (slots.find(7), slots.used) == (slot, 1)


def test_marks_are_evicted_before_new_and_shared_checkpoints_each_oldest_first() -> None:
    slots = CheckpointSlots(6)
    for node, kind in enumerate(
        (
            CheckpointKind.NEW,
            CheckpointKind.NEW,
            CheckpointKind.MARK,
            CheckpointKind.NEW,
            CheckpointKind.MARK,
            CheckpointKind.NEW,
        )
    ):
        kept(slots, node, kind)
    for node in (1, 0):
        slots.promote(slots.find(node))  # type: ignore[arg-type]
    gone = []
    for node in range(10, 16):
        before = found(slots)
        kept(slots, node)
        gone += sorted(set(before) - set(found(slots)))
    assert gone == [2, 4, 3, 5, 10, 11], "what is shared outlives as many new ones as come"


def test_a_mark_evicts_no_shared_checkpoint() -> None:
    slots = CheckpointSlots(2)
    slots.promote(kept(slots, 1))
    kept(slots, 2)
    kept(slots, 3, CheckpointKind.MARK)
    assert found(slots) == [1, 3]
    slots = CheckpointSlots(1)
    slots.promote(kept(slots, 1))
    assert slots.take(0, CheckpointKind.MARK) is None


def test_one_use_does_not_make_a_checkpoint_newer_and_several_uses_do() -> None:
    """A turn of a conversation uses the checkpoint of the turn before, and has newer ones afterwards."""
    slots = CheckpointSlots(4)
    for slot, uses in [(kept(slots, node), uses) for node, uses in enumerate((1, 3, 2, 0))]:
        for _ in range(uses):
            slots.acquire(slot)
            slots.release(slot)
    gone = []
    for node in range(10, 13):
        before = found(slots)
        kept(slots, node)
        gone += sorted(set(before) - set(found(slots)))
    assert gone == [0, 3, 2]


def test_a_used_mark_is_a_new_checkpoint() -> None:
    slots = CheckpointSlots(3)
    used = kept(slots, 1, CheckpointKind.MARK)
    kept(slots, 2, CheckpointKind.MARK)
    slots.acquire(used)
    slots.release(used)
    kept(slots, 3)
    kept(slots, 4)
    assert found(slots) == [1, 3, 4]


def test_a_missed_checkpoint_counts_as_used() -> None:
    slots = CheckpointSlots(2)
    slot = slots.take(0, CheckpointKind.NEW)
    assert slot is not None
    slots.count_miss(slot)
    slots.publish(slot, 1)
    slots.finish_plan()
    for _ in range(2):
        slots.acquire(slot)
        slots.release(slot)
    for node in (2, 3):
        kept(slots, node)
    assert found(slots) == [1, 3]


def test_at_most_half_of_the_slots_are_shared_checkpoints() -> None:
    slots = CheckpointSlots(4)
    for node in range(4):
        slots.promote(kept(slots, node))
    kept(slots, 10)
    assert found(slots) == [1, 2, 3, 10], "the one that was used first is new again, and the oldest of these"


def test_a_slot_that_a_row_will_begin_from_is_not_evicted() -> None:
    slots = CheckpointSlots(2)
    held = kept(slots, 1)
    slots.acquire(held)
    kept(slots, 2)
    kept(slots, 3)
    assert found(slots) == [1, 3]
    slots.drop(1)  # its node is lost: it is found no more, and still there for who holds it
    assert slots.find(1) is None and slots.used == 2
    assert slots.take(0, CheckpointKind.NEW) != held and slots.take(0, CheckpointKind.NEW) is None
    slots.release(held)
    assert slots.take(0, CheckpointKind.NEW) == held


def test_a_node_has_one_checkpoint() -> None:
    slots = CheckpointSlots(3)
    first = kept(slots, 1)
    kept(slots, 1)
    assert (slots.find(1), slots.used) == (first, 1)


def test_a_slot_is_not_written_twice_in_a_plan() -> None:
    slots = CheckpointSlots(2)
    first = kept(slots, 1)
    slots.acquire(first)
    again = slots.take(0, CheckpointKind.NEW)
    assert again is not None
    slots.publish(again, 1)  # there is one already
    assert slots.take(0, CheckpointKind.NEW) is None
    slots.finish_plan()
    assert slots.take(0, CheckpointKind.NEW) == again


def test_a_checkpoint_dropped_before_its_plan_is_complete_is_not_found() -> None:
    slots = CheckpointSlots(1)
    slot = slots.take(0, CheckpointKind.NEW)
    assert slot is not None
    slots.publish(slot, 1)
    slots.drop(1)
    slots.finish_plan()
    assert slots.find(1) is None and slots.used == 0


def test_a_sequence_does_not_replace_its_used_checkpoint() -> None:
    slots = CheckpointSlots(2)
    used = kept(slots, 1, taker=5)
    slots.acquire(used)
    slots.release(used)
    slots.replace(used, 5, CheckpointKind.NEW)
    assert found(slots) == [1]


def test_a_sequence_replaces_its_own_unused_checkpoints_only() -> None:
    slots = CheckpointSlots(4)
    mine, used = kept(slots, 1, taker=5), kept(slots, 2, taker=5)
    slots.promote(used)
    slots.replace(mine, 6, CheckpointKind.NEW)
    slots.replace(mine, 5, CheckpointKind.MARK)
    slots.replace(used, 5, CheckpointKind.NEW)
    assert found(slots) == [1, 2]
    slots.replace(mine, 5, CheckpointKind.NEW)
    assert found(slots) == [2]
    kept(slots, 3, taker=6)  # the same slot, of another sequence now
    slots.replace(mine, 5, CheckpointKind.NEW)
    assert found(slots) == [2, 3]
