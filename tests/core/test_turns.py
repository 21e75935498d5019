"""Turns of conversations: how much of the turn before the next one finds, in models with windows and recurrent state.

A client sends the whole conversation each turn. What could be found is all that begins like the turn before, but its
last token, whose keys and values were never computed; what is found is that in whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.types.request import Request

from .builders import request
from .harness import Harness, Setup

SIZE = 2
HYBRID = Setup(
    num_blocks=400,
    block_size=SIZE,
    max_rows=4,
    token_budget=16,
    max_model_len=150,
    snapshots=9,
    spacing=CheckpointSpacing(interval=16, min_gap=8, tail=1),
)
WINDOWED = replace(HYBRID, snapshots=0, windows=(0, 12, 12))
MODELS = pytest.mark.parametrize(
    "setup", [HYBRID, WINDOWED, replace(HYBRID, windows=WINDOWED.windows)], ids=["state", "windows", "both"]
)
SYSTEM = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0]
ANSWER = 6


class Talk:
    """One conversation. before: the last prompt with its answer."""

    def __init__(self, name: str, harness: Harness, first: int = 0):
        self.name, self.harness = name, harness
        self.history = [first, *SYSTEM]
        self.before: list[int] = []
        self._sent = 0

    def request(self, output: int = ANSWER, **params: object) -> Request:
        self._sent += 1
        return request(f"{self.name}-{self._sent}", self.history, output=output, **params)

    def turn(self, message: Sequence[int], **params: object) -> int:
        """Send one; return how many tokens less than ideal were found."""
        self.history += message
        (found,) = self.harness.serve(self.request(**params))
        missed = self._ideal() - found if self.before else 0
        self.before = self.history + self.harness.clients[-1].tokens[0]
        return missed

    def _ideal(self) -> int:
        alike = (at for at, (one, other) in enumerate(zip(self.before, self.history, strict=False)) if one != other)
        return min(next(alike, len(self.before)), len(self.before) - 1, len(self.history) - 1)

    def answered(self) -> None:
        self.history = list(self.before)


@MODELS
@pytest.mark.parametrize("message", [[1, 0, 1], [1, 0, 1] * 8], ids=["short", "longer than the window"])
def test_the_next_turn_and_one_that_is_sent_again_find_all_but_a_block(setup: Setup, message: list[int]) -> None:
    talk = Talk("a", Harness(setup))
    for turn in range(8 if len(message) < 12 else 3):
        assert talk.turn([turn % 8, *message]) <= SIZE
        assert turn % 2 or talk.turn([]) <= SIZE
        talk.answered()


@MODELS
def test_an_edited_message_is_computed_from_where_it_was_edited(setup: Setup) -> None:
    """Behind recurrent layers from the snapshot before, which stands behind the answer of the turn before."""
    talk = Talk("a", Harness(setup))
    for turn in range(4):
        talk.turn([turn, 1, 0, 1])
        del talk.history[-2:]
        missed = talk.turn([3, 3])
        assert turn == 0 or missed <= SIZE + (2 if setup.snapshots else 0)
        talk.answered()


@MODELS
def test_the_first_message_is_edited_and_what_is_before_it_found_from_a_mark_on(setup: Setup) -> None:
    talk = Talk("a", Harness(setup))
    talk.turn([2, 1, 0, 1, 2, 2, 1, 1])
    del talk.history[-4:]
    assert talk.turn([3, 3]) <= (setup.spacing.min_gap if setup.snapshots else SIZE)


@MODELS
def test_a_history_without_the_reasoning_is_found_up_to_the_answer(setup: Setup) -> None:
    talk = Talk("a", Harness(setup))
    for turn in range(5):
        assert talk.turn([turn, 1, 0, 1]) <= SIZE
        first, *answer = talk.before[len(talk.history) :]
        talk.history += [(first + 1) % 8, *answer[ANSWER // 2 :]]


@MODELS
def test_a_turn_that_scores_its_prompt_finds_nothing_and_leaves_it_to_the_next(setup: Setup) -> None:
    talk = Talk("a", Harness(setup))
    for turn in range(4):
        scores = turn % 2 == 0
        missed = talk.turn([turn, 1, 0, 1], **({"prompt_logprobs": 0} if scores else {}))
        assert turn == 0 or (missed == len(talk.before) - ANSWER - 4 - 1 if scores else missed <= SIZE)
        talk.answered()


@MODELS
@pytest.mark.parametrize("conversations", [2, 6])
def test_conversations_in_turn_find_theirs_in_memory_that_just_holds_them(setup: Setup, conversations: int) -> None:
    """There are two checkpoints for each and one for what they share, and the blocks that all hold at their ends."""
    turns, added = 6, 4 + ANSWER
    length = 1 + len(SYSTEM) + turns * added
    ends = [min(length, window + added if window else length) for window in setup.windows]
    blocks = max(conversations * sum(-(-end // SIZE) + 1 for end in ends), setup.max_blocks(length))
    harness = Harness(replace(setup, num_blocks=blocks, snapshots=setup.snapshots and 2 * conversations + 1))
    talks = [Talk(str(number), harness, number) for number in range(conversations)]
    for turn in range(turns):
        for talk in talks:
            assert talk.turn([turn, 1, 0, 1]) <= SIZE
            talk.answered()
    assert harness.scheduler.stats().preemptions == 0


@MODELS
def test_the_turn_after_a_preemption_finds_what_was_computed_again(setup: Setup) -> None:
    """Two conversations come together, and one of them is preempted while it decodes."""
    harness = Harness(replace(setup, num_blocks=85 if len(setup.windows) > 1 else 60, max_rows=2))
    talks = [Talk(str(number), harness, number) for number in range(2)]
    harness.serve(*(talk.request(output=50) for talk in talks))
    assert harness.scheduler.stats().preemptions > 0
    talks[1].before = talks[1].history + harness.clients[1].tokens[0]
    talks[1].answered()
    assert talks[1].turn([3, 1]) <= SIZE + (setup.spacing.min_gap if setup.snapshots else 0)
