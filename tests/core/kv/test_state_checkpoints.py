"""State checkpoints: where they are taken, what is found, and what is computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.core.kv.state_checkpoints import CheckpointSpacing
from inflight.core.types.kv_blocks import default_checkpoints
from inflight.core.types.request import Request

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, Setup, outputs_alone

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


def run(harness: Harness, *requests: Request) -> list[int]:
    """Run requests to their ends, and check their tokens; return the cached tokens of each."""
    harness.add(*requests)
    harness.drain()
    clients = harness.clients[-len(requests) :]
    for client in clients:
        assert client.tokens == outputs_alone(client.request, harness.setup.max_model_len)[0]
        assert client.ended is not None
    return [client.ended.timings.cached_tokens for client in clients if client.ended is not None]


def taken(harness: Harness) -> list[int]:
    return [position for plan in harness.plans for chunk in plan.chunks for position, _ in chunk.snapshots]


def test_the_same_prompt_begins_behind_its_last_whole_block() -> None:
    harness = Harness(ROOMY)
    prompt = [1, 0] * 10
    assert run(harness, request("a", prompt)) == [0]
    assert taken(harness) == [8, 14, 16, 18, 22], (
        "two marks, the late one, the end that leaves a token to compute, and one while decoding"
    )
    assert run(harness, request("b", prompt)) == [18]
    assert harness.begun == 1
    snapshot = harness.scheduler.stats()
    assert (snapshot.state_hits, snapshot.state_missed_tokens) == (1, 0)


def test_a_shared_beginning_is_found_from_the_third_request_on() -> None:
    """The first leaves blocks and a mark on the way; the second finds the branch, and takes a checkpoint there."""
    harness = Harness(ROOMY)
    tails = [[2] * 10, [3] * 10, [4] * 10]
    found = [run(harness, request(str(at), SYSTEM + tail))[0] for at, tail in enumerate(tails)]
    assert found == [0, 8, 14]
    assert harness.scheduler.stats().state_missed_tokens == 14 - 8


def test_a_conversation_continues_behind_its_answer() -> None:
    harness = Harness(ROOMY)
    run(harness, request("a", SYSTEM, output=21))
    (answer,) = harness.clients[0].tokens
    (found,) = run(harness, request("b", [*SYSTEM, *answer, 1, 1, 1], output=3))
    known = len(SYSTEM) + 21
    assert known - 1 - ROOMY.spacing.min_gap - SIZE < found <= known


def test_a_turn_whose_history_renders_its_prompt_end_differently_begins_before_that() -> None:
    """Templates drop the reasoning, and the tokens that opened it."""
    harness = Harness(replace(ROOMY, spacing=CheckpointSpacing(interval=100, min_gap=40, tail=4)))
    opened = [*SYSTEM, 5, 6, 7]
    run(harness, request("a", opened, output=8))
    (found,) = run(harness, request("b", [*SYSTEM, 3, 3, 3, 3, 3], output=3))
    assert found == 12


@pytest.mark.parametrize("edited", range(5, 11))
def test_a_message_edited_late_is_computed_again_from_shortly_before(edited: int) -> None:
    harness = Harness(replace(ROOMY, spacing=CheckpointSpacing(interval=100, min_gap=8, tail=1)))
    message = [0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2]
    run(harness, request("a", SYSTEM + message))
    (found,) = run(harness, request("b", [*SYSTEM, *message[:edited], 7, 7, 7]))
    alike = len(SYSTEM) + edited
    assert alike - 8 // 2 - SIZE < found <= alike


@pytest.mark.parametrize(("slots", "found"), [(2, [18, 26]), (3, [18, 22, 26])])
def test_a_late_mark_takes_free_slots_only(slots: int, found: list[int]) -> None:
    harness = Harness(replace(ROOMY, snapshots=slots, spacing=CheckpointSpacing(interval=100, min_gap=8, tail=1)))
    run(harness, request("a", SYSTEM * 2, output=1))
    assert taken(harness) == found


def test_decoding_uses_one_slot_however_long_it_takes() -> None:
    harness = Harness(ROOMY)
    run(harness, request("a", SYSTEM, output=60))
    assert len(taken(harness)) > 10
    assert harness.scheduler.stats().used_state_snapshots == 4  # two marks, the prompt's end, and the newest


def test_one_of_equal_prompts_that_arrive_together_is_computed() -> None:
    """The others wait a step for its checkpoint."""
    harness = Harness(replace(ROOMY, token_budget=64))
    found = run(harness, *(request(str(number), SYSTEM) for number in range(4)))
    assert found == [0, 12, 12, 12]


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_samples_of_a_request_begin_from_the_first_ones_prompt(prefix_caching: bool) -> None:
    harness = Harness(replace(ROOMY, token_budget=64, prefix_caching=prefix_caching))
    run(harness, request("a", SYSTEM, n=3, temperature=1.0, seed=7))
    starts = [chunk.start for plan in harness.plans for chunk in plan.chunks if chunk.length > 1]
    assert starts == [0, 12, 12]
    used = harness.scheduler.stats().used_state_snapshots
    assert bool(used) == prefix_caching


def test_other_salts_find_no_checkpoint() -> None:
    harness = Harness(ROOMY)
    assert run(harness, request("a", SYSTEM), request("b", SYSTEM, cache_salt="other")) == [0, 0]
    assert harness.begun == 0


SCARCE = replace(ROOMY, num_blocks=24, max_rows=2, max_model_len=48, spacing=CheckpointSpacing(8, 2, 1))


def scarce(**changes: object) -> Harness:
    """Run two requests that do not fit together until the later one is preempted while it decodes."""
    harness = Harness(replace(SCARCE, **changes))  # type: ignore[arg-type]
    harness.add(request("a", [0] * 10, output=25), request("b", [1] * 10, output=25))
    harness.until_preempted()
    return harness


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_preempted_sequence_continues_from_its_newest_checkpoint(prefix_caching: bool) -> None:
    harness = scarce(prefix_caching=prefix_caching, preemption="swap", host_blocks=30)
    harness.drain()
    for client in harness.clients:
        assert client.tokens == outputs_alone(client.request, SCARCE.max_model_len)[0]
    assert harness.begun > 0
    timings = harness.clients[1].ended.timings  # type: ignore[union-attr]
    assert 0 < timings.recomputed_tokens <= SCARCE.spacing.min_gap + SIZE


def test_blocks_beyond_the_newest_checkpoint_are_not_swapped() -> None:
    """Blocks beyond the newest checkpoint are computed again in any case."""
    sparse = CheckpointSpacing(interval=100, min_gap=6, tail=1)
    harness = scarce(preemption="swap", host_blocks=30, spacing=sparse)
    (victim,) = (one for one in inside.alive(harness.scheduler) if inside.num_kept_blocks(harness.scheduler, one))
    newest = max(
        position
        for plan in harness.plans
        for chunk in plan.chunks
        if chunk.sequence_id == victim.number
        for position, _ in chunk.snapshots
    )
    assert inside.num_kept_blocks(harness.scheduler, victim) == newest // SIZE < (victim.num_tokens - 1) // SIZE
    harness.drain()


class Nowhere(CheckpointSpacing):
    def ends(self, known: int, branch: int, newest: int, start: int, size: int) -> list[int]:
        return []

    def decoded(self, newest: int, prompt: int, start: int, end: int, size: int) -> int | None:
        return None


def test_without_a_checkpoint_no_block_is_swapped() -> None:
    harness = scarce(preemption="swap", host_blocks=30, spacing=Nowhere(interval=100))
    assert harness.scheduler.stats().swap_preemptions == 0
    harness.drain()
    assert harness.begun == 0


def test_a_failed_step_drops_all_checkpoints() -> None:
    harness = Harness(ROOMY)
    run(harness, request("a", SYSTEM))
    harness.add(request("b", [1] * 12))
    harness.step(fail=True)
    assert harness.scheduler.stats().used_state_snapshots == 0
    assert run(harness, request("c", SYSTEM), request("d", [1] * 12)) == [0, 0]


def test_one_slot_is_exact() -> None:
    harness = Harness(replace(ROOMY, snapshots=1))
    prompts = [SYSTEM, [1] * 12, SYSTEM, [1] * 12, [1] * 12]
    found = [run(harness, request(str(at), prompt))[0] for at, prompt in enumerate(prompts)]
    assert found[:4] == [0, 0, 0, 0]


def test_a_record_without_state_is_as_it_was() -> None:
    harness = Harness(replace(ROOMY, snapshots=0))
    assert run(harness, request("a", SYSTEM), request("b", SYSTEM)) == [0, 12]
    assert not taken(harness) and all(new.snapshot == -1 for plan in harness.plans for new in plan.new_requests)


def test_drafts_are_refused_with_the_number() -> None:
    with pytest.raises(ValueError, match=r"recurrent state, which cannot be taken back .* 40 snapshots"):
        Harness(replace(ROOMY, right_drafts=1.0))


def test_slots_are_two_for_each_row_in_a_quarter_of_the_memory_and_at_least_one() -> None:
    assert default_checkpoints(32, 10, 6400) == 64
    assert default_checkpoints(32, 10, 400) == 10
    assert default_checkpoints(32, 10, 0) == 1


def test_small_states_have_slots_for_more_conversations_than_run() -> None:
    assert default_checkpoints(32, 10, 64_000) == 100
    assert default_checkpoints(32, 10, 1e9) == 16 * 32


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
    prompt, newest, found = 100, 96, []
    for end in range(101, 100 + 1024):
        at = SPACING.decoded(newest, prompt, end - 1, end, BLOCK)
        if at is not None:
            found.append(at)
            newest = at
    gaps = [after - before for before, after in zip([96, *found], found, strict=False)]
    assert found[:4] == [112, 128, 144, 160] and gaps == sorted(gaps)
    assert set(gaps) == {16, 32, 48, 64} and gaps[-8:] == [64] * 8
