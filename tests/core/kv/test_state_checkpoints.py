"""State checkpoints: where they are taken and found, what is computed again, and which slots are evicted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.state_checkpoints import CheckpointKind, CheckpointSlots
from inflight.models.sequence_memory import default_checkpoints

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, Setup

SIZE = 2
ROOMY = Setup(
    num_blocks=200,
    block_size=SIZE,
    max_rows=4,
    token_budget=16,
    max_model_len=100,
    snapshots=40,
    spacing=CheckpointSpacing(interval=8, min_gap=4, tail=1),
)
SYSTEM = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0]


def taken(harness: Harness) -> list[int]:
    return [position for plan in harness.plans for chunk in plan.chunks for position, _ in chunk.snapshots]


def test_the_same_prompt_begins_behind_its_last_whole_block() -> None:
    harness = Harness(ROOMY)
    prompt = [1, 0] * 10
    assert harness.serve(request("a", prompt)) == [0]
    assert taken(harness) == [8, 14, 16, 18, 22], (
        "two marks, the late one, the end that leaves a token to compute, and one while decoding"
    )
    assert harness.serve(request("b", prompt)) == [18]
    snapshot = harness.scheduler.stats()
    assert (harness.begun, snapshot.kv.checkpoint_hits, snapshot.kv.checkpoint_missed_tokens) == (1, 1, 0)


def test_a_shared_beginning_is_found_from_the_third_request_on() -> None:
    """The first leaves blocks and a mark on the way; the second finds the branch, and takes a checkpoint there."""
    harness = Harness(ROOMY)
    found = [harness.serve(request(str(token), SYSTEM + [token] * 10)) for token in (2, 3, 4)]
    assert found == [[0], [8], [14]]
    assert harness.scheduler.stats().kv.checkpoint_missed_tokens == 14 - 8


@pytest.mark.parametrize("edited", [5, 8, 10])
def test_a_message_edited_late_is_computed_again_from_shortly_before(edited: int) -> None:
    harness = Harness(replace(ROOMY, spacing=CheckpointSpacing(interval=100, min_gap=8, tail=1)))
    message = [0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2]
    harness.serve(request("a", SYSTEM + message))
    (found,) = harness.serve(request("b", [*SYSTEM, *message[:edited], 7, 7, 7]))
    alike = len(SYSTEM) + edited
    assert alike - 8 // 2 - SIZE < found <= alike


@pytest.mark.parametrize(("slots", "found"), [(2, [18, 26]), (3, [18, 22, 26])])
def test_a_late_mark_takes_free_slots_only(slots: int, found: list[int]) -> None:
    harness = Harness(replace(ROOMY, snapshots=slots, spacing=CheckpointSpacing(interval=100, min_gap=8, tail=1)))
    harness.serve(request("a", SYSTEM * 2, output=1))
    assert taken(harness) == found


def test_decoding_uses_one_slot_however_long_it_takes() -> None:
    harness = Harness(ROOMY)
    harness.serve(request("a", SYSTEM, output=60))
    assert len(taken(harness)) > 10
    assert harness.scheduler.stats().kv.used_checkpoints == 4, "two marks, the prompt's end, and the newest"


def test_one_of_equal_prompts_that_arrive_together_is_computed() -> None:
    """The others wait a step for its checkpoint."""
    harness = Harness(replace(ROOMY, token_budget=64))
    assert harness.serve(*(request(str(number), SYSTEM) for number in range(4))) == [0, 12, 12, 12]


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_samples_of_a_request_begin_from_the_first_ones_prompt(prefix_caching: bool) -> None:
    harness = Harness(replace(ROOMY, token_budget=64, prefix_caching=prefix_caching))
    harness.serve(request("a", SYSTEM, n=3, temperature=1.0, seed=7))
    assert [chunk.start for plan in harness.plans for chunk in plan.chunks if chunk.length > 1] == [0, 12, 12]
    assert bool(harness.scheduler.stats().kv.used_checkpoints) == prefix_caching


SCARCE = replace(ROOMY, num_blocks=24, max_rows=2, max_model_len=48, spacing=CheckpointSpacing(8, 2, 1))


def scarce(**changes: object) -> Harness:
    """Run two requests that do not fit together until the later one is preempted while it decodes."""
    harness = Harness(replace(SCARCE, **changes), request("a", [0] * 10, output=25), request("b", [1] * 10, output=25))
    harness.until_preempted()
    return harness


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_preempted_sequence_continues_from_its_newest_checkpoint(prefix_caching: bool) -> None:
    harness = scarce(prefix_caching=prefix_caching, preemption="swap", host_blocks=30)
    harness.drain()
    assert harness.begun > 0
    assert 0 < harness.timings(1).recomputed_tokens <= SCARCE.spacing.min_gap + SIZE


def test_blocks_beyond_the_newest_checkpoint_are_not_swapped() -> None:
    """They are computed again in any case."""
    harness = scarce(preemption="swap", host_blocks=30, spacing=CheckpointSpacing(interval=100, min_gap=6, tail=1))
    (victim,) = (one for one in inside.alive(harness.scheduler) if inside.num_kept_blocks(harness.scheduler, one))
    chunks = [chunk for plan in harness.plans for chunk in plan.chunks if chunk.sequence_id == victim.number]
    newest = max(position for chunk in chunks for position, _ in chunk.snapshots)
    assert inside.num_kept_blocks(harness.scheduler, victim) == newest // SIZE < (victim.num_tokens - 1) // SIZE


class Nowhere(CheckpointSpacing):
    def ends(self, *given: object) -> list[int]:  # type: ignore[override]
        return []

    def decoded(self, newest: int, prompt: int, start: int, end: int, size: int) -> int | None:
        return None


def test_without_a_checkpoint_no_block_is_swapped() -> None:
    harness = scarce(preemption="swap", host_blocks=30, spacing=Nowhere(interval=100))
    assert harness.scheduler.stats().swap_preemptions == 0
    harness.drain()
    assert harness.begun == 0


def test_drafts_are_refused_with_the_number() -> None:
    with pytest.raises(ValueError, match=r"recurrent state, which cannot be taken back .* 40 snapshots"):
        Harness(replace(ROOMY, right_drafts=1.0))


@pytest.mark.parametrize(("memory_in_states", "slots"), [(0, 1), (400, 10), (6400, 64), (64_000, 100), (1e9, 16 * 32)])
def test_slots_are_two_for_each_row_at_least_one_and_more_where_states_are_small(
    memory_in_states: float, slots: int
) -> None:
    assert default_checkpoints(32, 10, memory_in_states) == slots


# -- spacing ----------------------------------------------------------------------------------------------------

BLOCK = 16
SPACING = CheckpointSpacing(interval=256, min_gap=64, tail=4)


@pytest.mark.parametrize(
    ("known", "branch", "newest", "start", "found"),
    [
        (608, 0, 0, 0, [592]),  # 608 itself leaves no token to compute, and less than the tail
        (611, 0, 0, 0, [592]),  # 608 leaves less than the tail
        (612, 0, 0, 0, [608]),
        (612, 0, 592, 592, [608]),  # one block further is worth it: a prompt ends once
        (612, 0, 608, 608, []),
        (612, 400, 0, 0, [400, 608]),
        (612, 592, 0, 0, [592]),  # a branch close before the end goes before it
        (612, 48, 0, 0, [608]),  # so few tokens are soon computed again
        (3, 0, 0, 0, []),
    ],
)
def test_ends(known: int, branch: int, newest: int, start: int, found: list[int]) -> None:
    assert SPACING.ends(known, branch, newest, start, BLOCK) == found


def test_marks_are_at_intervals_and_before_the_end() -> None:
    """The last one is for a message that is edited."""
    assert SPACING.marks([1024], 1030, 0, 0, 1030, BLOCK) == [256, 512, 768, 960]
    assert SPACING.marks([800], 1030, 230, 230, 700, BLOCK) == [512]
    assert SPACING.marks([608], 612, 0, 0, 612, BLOCK) == [256, 544], "none close to another one"
    assert SPACING.marks([672], 676, 600, 600, 676, BLOCK) == []


@pytest.mark.parametrize(
    ("ends", "known", "newest", "start", "end", "found"),
    [
        ([1024], 1030, 0, 0, 1030, 992),
        ([1024], 1030, 960, 960, 1030, 992),  # half as far from the others as other marks are
        ([1024], 1030, 976, 976, 1030, None),
        ([1024], 1030, 0, 0, 980, None),  # not in this chunk
        ([1008], 1030, 0, 0, 1030, None),  # a branch is near enough
    ],
)
def test_a_late_mark_is_half_as_far_from_the_end(
    ends: list[int], known: int, newest: int, start: int, end: int, found: int | None
) -> None:
    assert SPACING.late_mark(ends, known, newest, start, end, BLOCK) == found


def test_a_short_answer_has_a_checkpoint_at_each_block_and_a_long_one_at_each_fourth() -> None:
    prompt, found = 100, [96]
    for end in range(101, 100 + 1024):
        at = SPACING.decoded(found[-1], prompt, end - 1, end, BLOCK)
        found += [] if at is None else [at]
    gaps = [after - before for before, after in pairwise(found)]
    assert found[1:5] == [112, 128, 144, 160] and gaps == sorted(gaps)
    assert set(gaps) == {16, 32, 48, 64} and gaps[-8:] == [64] * 8


# -- slots ------------------------------------------------------------------------------------------------------

MARK, NEW = CheckpointKind.MARK, CheckpointKind.NEW


class Slots(CheckpointSlots):
    def keep(self, node: int, kind: CheckpointKind = NEW, taker: int = 0, uses: int = 0) -> int:
        """Take a checkpoint in a complete plan, found by the node; rows begin from it so often."""
        slot = self.take(taker, kind)
        self.publish(slot, node)
        self.finish_plan()
        for _ in range(uses):
            self.acquire(slot)
            self.release(slot)
        return slot

    @property
    def found(self) -> list[int]:
        return [node for node in range(20) if self.find(node) is not None]

    def evicted(self, count: int) -> list[int]:
        """Return which nodes so many new checkpoints evict, one after the other."""
        gone = []
        for node in range(10, 10 + count):
            before = self.found
            self.keep(node)
            gone += sorted(set(before) - set(self.found))
        return gone


def test_a_checkpoint_is_found_from_the_next_plan_on_once_its_tokens_are_known() -> None:
    slots = Slots(2)
    slot, later = slots.take(0, NEW), slots.take(0, NEW)
    slots.publish(slot, 7)
    assert slots.find(7) is None and slots.coming == {7}
    slots.finish_plan()
    assert slots.find(7) == slot and not slots.coming
    slots.publish(later, 8)
    assert slots.found == [7, 8] and slots.used == 2


def test_marks_are_evicted_before_new_and_shared_checkpoints_each_oldest_first() -> None:
    slots = Slots(6)
    for node, kind in enumerate((NEW, NEW, MARK, NEW, MARK, NEW)):
        slots.keep(node, kind)
    for node in (1, 0):
        slots.promote(slots.find(node))
    assert slots.evicted(6) == [2, 4, 3, 5, 10, 11], "what is shared outlives as many new ones as come"


def test_a_mark_evicts_no_shared_checkpoint() -> None:
    slots = Slots(2)
    slots.promote(slots.keep(1))
    slots.keep(2)
    slots.keep(3, MARK)
    assert slots.found == [1, 3]
    slots = Slots(1)
    slots.promote(slots.keep(1))
    assert slots.take(0, MARK) is None


def test_one_use_does_not_make_a_checkpoint_newer_and_several_uses_do() -> None:
    """A turn of a conversation uses the checkpoint of the turn before, and has newer ones afterwards."""
    slots = Slots(4)
    for node in range(4):
        slots.keep(node)
    for node, uses in enumerate((1, 3, 2, 0)):
        for _ in range(uses):
            slots.acquire(slots.find(node))
            slots.release(slots.find(node))
    assert slots.evicted(3) == [0, 3, 2]


def test_a_used_mark_is_a_new_checkpoint() -> None:
    slots = Slots(3)
    slots.keep(1, MARK, uses=1)
    slots.keep(2, MARK)
    assert slots.evicted(2) == [2] and slots.found == [1, 10, 11]


def test_a_missed_checkpoint_counts_as_used() -> None:
    slots = Slots(2)
    slot = slots.take(0, NEW)
    slots.count_miss(slot)
    slots.publish(slot, 1)
    slots.finish_plan()
    for _ in range(2):
        slots.acquire(slot)
        slots.release(slot)
    assert slots.evicted(2) == [10] and slots.found == [1, 11]


def test_at_most_half_of_the_slots_are_shared_checkpoints() -> None:
    slots = Slots(4)
    for node in range(4):
        slots.promote(slots.keep(node))
    assert slots.evicted(1) == [0], "the one that was used first is new again, and the oldest of these"


def test_a_slot_that_a_row_will_begin_from_is_not_evicted() -> None:
    slots = Slots(2)
    held = slots.keep(1)
    slots.acquire(held)
    assert slots.evicted(2) == [10]
    slots.drop(1)  # its node is lost: it is found no more, and still there for who holds it
    assert slots.found == [11] and slots.used == 2
    assert slots.take(0, NEW) != held and slots.take(0, NEW) is None
    slots.release(held)
    assert slots.take(0, NEW) == held


def test_a_node_has_one_checkpoint_and_a_slot_is_not_written_twice_in_a_plan() -> None:
    slots = Slots(2)
    first = slots.keep(1)
    slots.acquire(first)
    again = slots.take(0, NEW)
    slots.publish(again, 1)  # there is one already
    assert slots.take(0, NEW) is None
    slots.finish_plan()
    assert (slots.find(1), slots.used, slots.take(0, NEW)) == (first, 1, again)


def test_a_checkpoint_dropped_before_its_plan_is_complete_is_not_found() -> None:
    slots = Slots(1)
    slots.publish(slots.take(0, NEW), 1)
    slots.drop(1)
    slots.finish_plan()
    assert slots.find(1) is None and slots.used == 0


def test_a_sequence_replaces_its_own_unused_checkpoints_only() -> None:
    slots = Slots(4)
    mine, used, shared = slots.keep(1, taker=5), slots.keep(2, taker=5, uses=1), slots.keep(3, taker=5)
    slots.promote(shared)
    for slot, taker, kind in ((mine, 6, NEW), (mine, 5, MARK), (used, 5, NEW), (shared, 5, NEW)):
        slots.replace(slot, taker, kind)
    assert slots.found == [1, 2, 3]
    slots.replace(mine, 5, NEW)
    assert slots.found == [2, 3]
    slots.keep(4, taker=6)  # in the same slot
    slots.replace(mine, 5, NEW)
    assert slots.found == [2, 3, 4]
