"""Drafts: which sequences have any, within which limits, and that they change the number of steps alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from inflight.config.plugin_guards import guard_drafter
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import NOTHING, Proposal
from inflight.core.types.events import TokensEvent
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request
from inflight.testing.eager_speculation import EagerSpeculation

from .builders import request
from .harness import BATCH, INTERACTIVE, VOCABULARY, Harness, Setup

ROOMY = Setup(num_blocks=60, block_size=4, max_rows=4, token_budget=16, right_drafts=1.0)


class Answers:
    """A drafter that answers so, one after the other; the last answer again and again."""

    name = "answers"

    def __init__(self, *answers: Any):
        self.answers = list(answers)

    def propose(self, view: SequenceView, max_drafts: int) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(view, max_drafts) if callable(answer) else answer

    def finished(self, view: SequenceView) -> None:
        """Keep nothing."""


def drafts(token_id: int, count: int) -> Proposal:
    return Proposal((token_id,) * count, (0.5,) * count)


def wrong(most: int) -> Answers:
    """Answer with so many end tokens, which these requests never draw."""
    return Answers(lambda view, max_drafts: drafts(VOCABULARY - 1, min(most, max_drafts)))


def drafts_of(plans: Iterable[BatchPlan]) -> list[int]:
    return [chunk.num_drafts for plan in plans for chunk in plan.chunks]


def drained(setup: Setup, *requests: Request, speculation: Any = None) -> Harness:
    harness = Harness(setup, *requests, speculation=speculation)
    harness.drain()
    return harness


def test_right_drafts_bring_several_tokens_a_step() -> None:
    right, none = (drained(replace(ROOMY, right_drafts=share), request(output=16)) for share in (1.0, None))
    assert len(none.plans) == 16 > 2 * len(right.plans)
    assert right.drafted[0] == right.drafted[1] > 8 and sum(drafts_of(right.plans)) == right.drafted[1]


def test_wrong_drafts_bring_one_token_a_step_and_are_computed_again() -> None:
    asked = request(output=6, max_tokens=6, min_tokens=6, ignore_eos=False)
    harness = drained(ROOMY, asked, speculation=EagerSpeculation(wrong(3)))
    assert len(harness.plans) == 6 and harness.drafted == [0, 3 + 3 + 2 + 1]
    assert [chunk.start for plan in harness.plans for chunk in plan.chunks] == [0, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("polls", [(), (2, 0, 5)])
@pytest.mark.parametrize("drafting", ["planned", "executor", "fickle"])
def test_in_a_crowd_tokens_are_those_of_decoding_alone(
    right: float, depth: int, preemption: Any, caching: bool, polls: tuple[int, ...], drafting: Any
) -> None:
    crowded = replace(ROOMY, num_blocks=8, block_size=2, max_rows=3, token_budget=8, host_blocks=20)
    setup = replace(crowded, right_drafts=right, depth=depth, preemption=preemption, prefix_caching=caching)
    sampled = [request(f"r{n}", [0, 1] * 2 + [n % 2], output=9, n=1 + n % 2, temperature=1.0, seed=n) for n in range(5)]
    harness = drained(replace(setup, transfer_polls=polls, drafting=drafting), *sampled)
    assert harness.drafted[1] > 0 and harness.scheduler.stats().preemptions > 0


def test_a_stop_inside_of_drafts_drops_what_follows() -> None:
    """Found by trying prompts: one whose output meets a stop within the drafts of a step."""
    seen = 0
    for number in range(20):
        prompt = [number >> bit & 1 for bit in range(5)]
        for params in ({"stop": ("a",)}, {"stop_token_ids": (2, 3)}, {"ignore_eos": False}):
            asked = request("r", prompt, output=None, max_tokens=20, **params)
            harness = Harness(replace(ROOMY, max_model_len=40), asked)
            (last,) = [one for one in harness.drain() if isinstance(one, TokensEvent) and one.finish is not None]
            drafted = drafts_of(harness.plans)[-1]
            seen += last.finish.reason == "stop" and len(last.token_ids) < 1 + drafted
    assert seen > 5


def test_drafts_have_what_the_step_has_left() -> None:
    """Not what prompts and other decodes take of the budget, and never beyond the last token."""
    asked: list[int] = []

    def eager(view: SequenceView, most: int) -> Proposal:
        asked.append(most)
        return drafts(0, most)

    harness = Harness(replace(ROOMY, token_budget=8), speculation=EagerSpeculation(Answers(eager)))
    harness.add(request("a", [0, 1], output=20, max_tokens=9))
    harness.step()
    harness.add(request("b", [1] * 10, output=1))
    # First one token of a and seven of b's prompt, then the last three of that.
    for expected in ([0, 0], [4, 0]):
        plan = harness.plan()
        assert plan.tokens == 8 and drafts_of([plan]) == expected
        harness.commit()
    harness.drain()
    assert asked[0] == 4 and asked[-1] <= 8 - 2


def test_no_sequence_is_preempted_for_drafts() -> None:
    """Two that fill all blocks but one, of which each asks for as many drafts as it may have."""
    asked = request("a", [0] * 4, output=4), request("b", [1] * 4, output=4)
    harness = drained(replace(ROOMY, num_blocks=4, max_rows=2), *asked)
    assert harness.scheduler.stats().preemptions == 0 and harness.drafted[1] > 0


def test_where_every_block_has_held_something_a_sequence_has_its_next_block_for_drafts() -> None:
    def max_drafts(*before: Request) -> list[int]:
        """Return the drafts that it may have, step by step; those of a block at most."""
        found: list[int] = []

        def asked(view: SequenceView, most: int) -> Proposal:
            found.append(min(most, ROOMY.block_size))
            return NOTHING

        harness = drained(replace(ROOMY, num_blocks=16), *before, speculation=EagerSpeculation(Answers(asked)))
        found.clear()
        free_blocks = harness.scheduler.stats().kv.free_blocks
        assert free_blocks < 3 if before else free_blocks == 16
        harness.serve(request("asked", (1, 1, 0), output=16))
        return found

    others = [request(f"r{number}", [number >> bit & 1 for bit in range(8)], output=2) for number in range(8)]
    assert max_drafts(*others) == max_drafts() == [4] * 15


@pytest.mark.parametrize("windows", [(0,), (0, 4)])
def test_a_sequence_with_drafts_in_flight_waits_for_them(windows: tuple[int, ...]) -> None:
    harness = Harness(replace(ROOMY, depth=2, windows=windows), request("a", output=12))
    harness.plan()
    while not any(drafts_of(harness.plans)):
        harness.commit()
        harness.plan()
    assert harness.plan() is None and harness.scheduler.stats().running == 1


def test_background_work_is_drafted_for_where_nothing_else_runs() -> None:
    lanes = (INTERACTIVE, replace(BATCH, settings=(("background", True), ("step_target", "off"))))
    asked = request("a", [1], output=5), request("b", [0], output=20, lane="batch")
    harness = drained(replace(ROOMY, lanes=lanes), *asked)
    behind = [chunk.num_drafts for plan in harness.plans for chunk in plan.chunks[1:]]
    assert behind and not any(behind)
    assert any(drafts_of(plan for plan in harness.plans if plan.chunks[0].sequence_id == 1))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (drafts(0, 100), "more than 15 tokens were drafted"),
        (drafts(VOCABULARY, 1), "a draft is 8; it must be from 0 to 7"),
        (drafts(-1, 1), "a draft is -1"),
        (drafts(True, 1), "a draft must be a whole number"),
        (Proposal((0, 0), (0.5,)), "2 tokens were drafted with 1 chances"),
        (Proposal((0,), (1.5,)), "a chance is 1.5; it must be from 0 to 1"),
        (Proposal((0,), (float("nan"),)), "a chance is nan"),
        (None, "TypeError"),
        (lambda view, most: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_drafter_that_answers_nonsense_is_asked_no_more(answer: Any, why: str) -> None:
    sentences: list[str] = []
    drafter = guard_drafter(Answers(drafts(1, 1), answer), VOCABULARY, sentences.append)
    harness = drained(ROOMY, request(output=18), speculation=EagerSpeculation(drafter))
    (sentence,) = sentences
    assert why in sentence and sentence.endswith("decoding token by token has taken over.")
    assert sum(drafts_of(harness.plans)) == 1


def test_a_drafter_sees_the_tokens_so_far() -> None:
    seen: list[tuple[int, ...]] = []

    def note(view: SequenceView, most: int) -> Proposal:
        seen.append(view.token_slice(0, view.prompt_tokens + view.output_tokens))
        return NOTHING

    asked = request(prompt=[0, 1], output=4, max_tokens=4)
    (tokens,) = drained(ROOMY, asked, speculation=EagerSpeculation(Answers(note))).clients[0].tokens
    assert seen == [(0, 1, *tokens[:1]), (0, 1, *tokens[:2])]  # before the last token there is nothing to draft


class HoldsFirst(EagerSpeculation):
    """The first sequence is left out of steps that are planned ahead."""

    def due(self, step: int) -> set[int]:
        return set(range(10))

    def hold_back(self, step: int, views: Iterable[SequenceView], running: int) -> set[int]:
        return {0}


class WaitsAll(HoldsFirst):
    """No step is planned ahead."""

    def waits(self, step: int) -> bool:
        return True


def drafts_at_depth_2(speculation: EagerSpeculation) -> list[dict[int, int]]:
    """Return the drafts of two sequences, step by step."""
    asked = request("a", [0, 1], output=12), request("b", [1, 1], output=12)
    harness = drained(replace(ROOMY, depth=2, max_rows=2), *asked, speculation=speculation)
    return [{chunk.sequence_id: chunk.num_drafts for chunk in plan.chunks} for plan in harness.plans]


def test_who_is_held_back_is_drafted_for_in_the_step_behind() -> None:
    """The other one is planned ahead, and so never drafted for, while both run; behind a prompt, too."""
    steps = drafts_at_depth_2(HoldsFirst(wrong(1)))
    both = steps[: max(step for step, one in enumerate(steps) if 1 in one)]
    mine = [step for step, one in enumerate(both) if 0 in one]
    assert mine[1:] == list(range(mine[1], len(both), 2)) and all(both[step][0] == 1 for step in mine[1:])
    assert not any(one.get(1) for one in both)


def test_a_step_that_waits_is_planned_behind_the_result() -> None:
    """All are in every step, and may have drafts in it."""
    steps = drafts_at_depth_2(WaitsAll(wrong(1)))
    assert [len(one) for one in steps[:10]] == [2] * 10
    assert all(count for one in steps[1:10] for count in one.values())
