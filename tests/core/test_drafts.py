"""Drafts: which sequences have any, within which limits, and that they change the number of steps alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from inflight.core.plugin import guard_drafter
from inflight.core.sequence import SequenceView
from inflight.core.speculation.drafter import NOTHING, Proposal
from inflight.core.types.events import Finish, TokensEvent
from inflight.core.types.plan import BatchPlan
from inflight.testing.eager_speculation import EagerSpeculation

from .builders import request
from .harness import BATCH, INTERACTIVE, VOCABULARY, Harness, Setup, outputs_alone

ROOMY = Setup(num_blocks=60, block_size=4, max_rows=4, token_budget=16, right_drafts=1.0)
CROWDED = replace(ROOMY, num_blocks=8, block_size=2, max_rows=3, token_budget=8)


class Answers:
    """A drafter that answers so, one after the other; the last answer again and again."""

    name = "answers"

    def __init__(self, *answers: Any):
        self.answers = list(answers)
        self.ended: list[int] = []

    def propose(self, view: SequenceView, max_drafts: int) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(view, max_drafts) if callable(answer) else answer

    def finished(self, view: SequenceView) -> None:
        self.ended.append(view.number)


def drafts(token_id: int, count: int) -> Proposal:
    return Proposal((token_id,) * count, (0.5,) * count)


def drafts_of(plans: Iterable[BatchPlan]) -> list[int]:
    return [chunk.num_drafts for plan in plans for chunk in plan.chunks]


def drained(setup: Setup, *requests: Any) -> Harness:
    """Every request ends as it does alone."""
    harness = Harness(setup)
    harness.add(*requests)
    harness.drain()
    for client in harness.clients:
        tokens, finishes = outputs_alone(client.request, setup.max_model_len)
        assert (client.tokens, client.ended.finishes) == (tokens, finishes)
    return harness


def test_right_drafts_bring_several_tokens_a_step() -> None:
    right, none = (drained(replace(ROOMY, right_drafts=share), request(output=16)) for share in (1.0, None))
    assert len(none.plans) == 16 > 2 * len(right.plans)
    assert right.drafted[0] == right.drafted[1] > 8 and sum(drafts_of(right.plans)) == right.drafted[1]


def test_wrong_drafts_bring_one_token_a_step_and_are_computed_again() -> None:
    def wrong(view: SequenceView, most: int) -> Proposal:
        return drafts(VOCABULARY - 1, min(3, most))  # an end token, which this request never draws

    harness = Harness(replace(ROOMY, right_drafts=None))
    harness.scheduler = harness.setup.scheduler(speculation=EagerSpeculation(Answers(wrong)))
    harness.add(request(output=6, max_tokens=6, min_tokens=6, ignore_eos=False))
    harness.drain()
    assert len(harness.plans) == 6 and harness.drafted == [0, 3 + 3 + 2 + 1]
    assert harness.clients[0].tokens == outputs_alone(harness.clients[0].request, 24)[0]
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
    setup = replace(
        CROWDED, drafting=drafting, right_drafts=right, depth=depth, preemption=preemption, prefix_caching=caching
    )
    setup = replace(setup, host_blocks=20, transfer_polls=polls, drafting=drafting)
    sampled = [request(f"r{n}", [0, 1] * 2 + [n % 2], output=9, n=1 + n % 2, temperature=1.0, seed=n) for n in range(5)]
    harness = drained(setup, *sampled)
    assert harness.drafted[1] > 0 and harness.scheduler.stats().preemptions > 0


def test_a_stop_inside_of_drafts_drops_what_follows() -> None:
    """Found by trying prompts: one whose output meets a stop within the drafts of a step."""
    seen = 0
    for number in range(20):
        prompt = [number >> place & 1 for place in range(5)]
        for params in ({"stop": ("a",)}, {"stop_token_ids": (2, 3)}, {"ignore_eos": False}):
            of = request("r", prompt, output=None, max_tokens=20, **params)
            harness = Harness(replace(ROOMY, max_model_len=40))
            harness.add(of)
            events = harness.drain()
            tokens, finishes = outputs_alone(of, 40)
            assert (harness.clients[0].tokens, harness.clients[0].ended.finishes) == (tokens, finishes)
            (last,) = [one for one in events if isinstance(one, TokensEvent) and one.finish is not None]
            drafted = drafts_of(harness.plans)[-1]
            seen += last.finish.reason == "stop" and len(last.token_ids) < 1 + drafted  # type: ignore[union-attr]
    assert seen > 5


def test_drafts_have_what_the_step_has_left() -> None:
    """Not what prompts and other decodes take of the budget, and never beyond the last token."""

    asked: list[int] = []

    def eager(view: SequenceView, most: int) -> Proposal:
        asked.append(most)
        return drafts(0, most)

    harness = Harness(replace(ROOMY, right_drafts=None, token_budget=8))
    harness.scheduler = harness.setup.scheduler(speculation=EagerSpeculation(Answers(eager)))
    harness.add(request("a", [0, 1], output=20, max_tokens=9))
    harness.step()
    harness.add(request("b", [1] * 10, output=1))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and plan.tokens == 8 and drafts_of([plan]) == [0, 0]
    harness.commit()
    plan = harness.plan()  # one token of a, and the last three of b's prompt
    assert isinstance(plan, BatchPlan) and plan.tokens == 8 and drafts_of([plan]) == [4, 0]
    harness.commit()
    harness.drain()
    assert asked[0] == 4 and asked[-1] <= 8 - 2 and harness.clients[0].ended.finishes == (Finish("length"),)


def test_two_decodes_share_what_is_left() -> None:
    harness = Harness(replace(ROOMY, token_budget=8))
    harness.add(request("a", output=20), request("b", output=20))
    harness.drain()
    for plan in harness.plans:
        drafts = drafts_of([plan])
        assert len(drafts) < 2 or drafts[0] <= 3


def test_drafts_take_no_blocks_from_anybody() -> None:
    """Two that fill all blocks but one, of which each asks for as many drafts as it may have."""
    setup = replace(ROOMY, num_blocks=4, block_size=4, max_rows=2)
    harness = drained(setup, request("a", [0] * 4, output=4), request("b", [1] * 4, output=4))
    assert harness.scheduler.stats().preemptions == 0 and harness.drafted[1] > 0


def test_where_every_block_has_held_something_a_sequence_has_its_next_block_for_drafts() -> None:
    def max_drafts(*before: Any) -> list[int]:
        """Return the drafts that it may have, step by step; those of a block at most."""
        found: list[int] = []

        def asked(view: SequenceView, most: int) -> Proposal:
            found.append(min(most, ROOMY.block_size))
            return NOTHING

        harness = Harness(replace(ROOMY, num_blocks=16))
        harness.scheduler = harness.setup.scheduler(speculation=EagerSpeculation(Answers(asked)))
        harness.add(*before)
        harness.drain()
        found.clear()
        free_blocks = harness.scheduler.stats().free_blocks
        assert free_blocks < 3 if before else free_blocks == 16
        harness.add(request("asked", (1, 1, 0), output=16))
        harness.drain()
        return found

    others = [request(f"r{number}", [number >> place & 1 for place in range(8)], output=2) for number in range(8)]
    assert max_drafts(*others) == max_drafts() == [4] * 15


def test_a_sequence_with_drafts_in_flight_waits_for_them() -> None:
    harness = Harness(replace(ROOMY, depth=2))
    harness.add(request("a", output=12))
    harness.plan()
    harness.commit()
    one = harness.plan()
    while isinstance(one, BatchPlan) and not any(drafts_of([one])):
        harness.commit()
        one = harness.plan()
    assert isinstance(one, BatchPlan) and harness.plan() is None
    assert harness.scheduler.stats().running == 1
    harness.commit()
    harness.drain()


def test_abort_with_drafts_in_flight() -> None:
    harness = Harness(ROOMY)
    harness.add(request("a", output=12))
    while not isinstance(plan := harness.plan(), BatchPlan) or not any(drafts_of([plan])):
        harness.commit()
    harness.abort("a")
    assert harness.commit() == []
    harness.drain()


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_a_batch_that_runs_together_has_none(strategy: Any) -> None:
    harness = drained(replace(ROOMY, strategy=strategy), request("a", output=12), request("b", [1], output=3))
    assert not any(drafts_of(harness.plans))


def test_background_work_is_drafted_for_where_nothing_else_runs() -> None:
    lanes = (INTERACTIVE, replace(BATCH, settings=(("background", True), ("step_target", "off"))))
    harness = Harness(replace(ROOMY, lanes=lanes))
    harness.add(request("a", [1], output=5), request("b", [0], output=20, lane="batch"))
    harness.drain()
    both = [plan for plan in harness.plans if len(plan.chunks) == 2]
    behind = [chunk for plan in both for chunk in plan.chunks if chunk.sequence_id == 1]
    assert behind and not any(chunk.num_drafts for chunk in behind)
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
    harness = Harness(replace(ROOMY, right_drafts=None))
    harness.scheduler = harness.setup.scheduler(speculation=EagerSpeculation(drafter))
    harness.add(request(output=18))
    harness.drain()
    assert harness.clients[0].tokens == outputs_alone(harness.clients[0].request, 24)[0]
    (sentence,) = sentences
    assert why in sentence and sentence.endswith("decoding token by token has taken over.")
    assert sum(drafts_of(harness.plans)) == 1


def test_a_drafter_sees_the_tokens_so_far() -> None:
    seen: list[tuple[int, ...]] = []

    def note(view: SequenceView, most: int) -> Proposal:
        seen.append(view.token_slice(0, view.prompt_tokens + view.output_tokens))
        return NOTHING

    harness = Harness(replace(ROOMY, right_drafts=None))
    harness.scheduler = harness.setup.scheduler(speculation=EagerSpeculation(Answers(note)))
    harness.add(request(prompt=[0, 1], output=4, max_tokens=4))
    harness.drain()
    tokens = harness.clients[0].tokens[0]
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


def at_depth_2(speculation: EagerSpeculation) -> Harness:
    """Two sequences, whose drafts are nothing but a wrong token."""
    harness = Harness(replace(ROOMY, right_drafts=None, depth=2, max_rows=2))
    harness.scheduler = harness.setup.scheduler(speculation=speculation)
    harness.add(request("a", [0, 1], output=12), request("b", [1, 1], output=12))
    harness.drain()
    for client in harness.clients:
        assert client.tokens == outputs_alone(client.request, 24)[0]
    return harness


def test_who_is_held_back_is_drafted_for_in_the_step_behind() -> None:
    """The other one is planned ahead, and so never drafted for, while both run; behind a prompt, too."""
    harness = at_depth_2(HoldsFirst(Answers(lambda view, most: drafts(VOCABULARY - 1, min(1, most)))))
    of = [{chunk.sequence_id: chunk.num_drafts for chunk in plan.chunks} for plan in harness.plans]
    both = of[: max(place for place, one in enumerate(of) if 1 in one)]
    mine = [place for place, one in enumerate(both) if 0 in one]
    assert mine[1:] == list(range(mine[1], len(both), 2)) and all(both[place][0] == 1 for place in mine[1:])
    assert not any(one.get(1) for one in both)


def test_a_step_that_waits_is_planned_behind_the_result() -> None:
    """All are in every step, and may have drafts in it."""
    harness = at_depth_2(WaitsAll(Answers(lambda view, most: drafts(VOCABULARY - 1, min(1, most)))))
    assert [len(plan.chunks) for plan in harness.plans[:10]] == [2] * 10
    assert all(chunk.num_drafts for plan in harness.plans[1:10] for chunk in plan.chunks)
