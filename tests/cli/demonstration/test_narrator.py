"""What the narrator says of a real scheduler's steps, and how often."""

from __future__ import annotations

from core.builders import request
from core.harness import Setup

from inflight.cli.demonstration.narrator import Narrator, Sentence
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

ROOMY = Setup(num_blocks=40, block_size=2, max_rows=4, token_budget=6, max_model_len=60, prefix_caching=False)
TIGHT = Setup(num_blocks=12, block_size=2, max_rows=4, token_budget=6, max_model_len=24, prefix_caching=False)


def prompt(tokens: int) -> tuple[int, ...]:
    return tuple(place % 7 for place in range(tokens))


class Told:
    """An engine whose steps take a second each, and what is said of it."""

    def __init__(self, setup: Setup, quiet_s: float = 0.0):
        self.told: list[Sentence | None] = []
        self.narrator = Narrator(self.told.append, quiet_s)
        executor = NullExecutor(setup.capacity, lambda plan: 1.0)
        self.loop = EngineLoop(setup.scheduler(), executor, VirtualClock(), observers=[self.narrator])

    @property
    def sentences(self) -> list[Sentence]:
        return [one for one in self.told if one is not None]

    def of(self, kind: str) -> list[str]:
        return [one.text for one in self.sentences if one.kind == kind]

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.loop.advance()


def test_a_prompt_in_pieces_beside_answers() -> None:
    told = Told(ROOMY)
    told.loop.add(request("short", (1, 2), output=20))
    told.steps(2)
    told.loop.add(request("long", prompt(20), output=2))
    told.loop.run()
    assert told.of("chunked prefill") == [
        "A prompt of 20 tokens in the interactive lane was computed in 4 pieces of at most 5, a piece a step; "
        "beside it 1 answer got a token in every step."
    ]


def test_nothing_is_said_of_prompts_that_stand_alone_or_are_short() -> None:
    told = Told(ROOMY)
    told.loop.add(request("alone", prompt(20), output=2))
    told.loop.run()
    told.loop.add(request("first", (1, 2), output=8))
    told.steps(1)
    told.loop.add(request("short", (3, 4, 5), output=2))
    told.loop.run()
    assert not told.sentences


def test_a_batch_answer_gives_way_and_comes_back() -> None:
    told = Told(TIGHT)
    told.loop.add(request("work", (1, 2, 3, 4), output=14, lane="batch"))
    told.steps(8)
    told.loop.add(request("asked", prompt(16), output=2))
    told.loop.run()
    (preemption,) = told.of("preemption")
    assert preemption.startswith("An answer of ") and "in the batch lane gives up its row and its " in preemption
    assert "to the interactive lane, where a prompt of 16 tokens needs room" in preemption
    assert told.narrator.seen["preemption"] == 1
    (gave_way,) = told.of("batch lane")
    assert "outside of the batch after it was preempted" in gave_way
    # What was computed twice is no prompt that was computed in pieces.
    assert not [one for one in told.of("chunked prefill") if "prompt of 4 tokens" in one]


def test_batch_work_that_waited_for_others() -> None:
    told = Told(TIGHT)
    told.loop.add(request("asked", prompt(16), output=6))
    told.steps(4)
    told.loop.add(request("work", prompt(8), output=2, lane="batch"))
    told.loop.run()
    (waited,) = told.of("batch lane")
    assert (
        "A batch request is done. It waited " in waited and "because the interactive lane had the KV blocks" in waited
    )


def test_no_more_than_one_sentence_of_a_kind_in_a_while_but_all_are_counted() -> None:
    told = Told(ROOMY, quiet_s=1000.0)
    told.loop.add(request("short", (1, 2), output=40))
    for number in range(3):
        told.steps(2)
        told.loop.add(request(f"long-{number}", prompt(16), output=1))
    told.loop.run()
    assert len(told.of("chunked prefill")) == 1 and told.narrator.seen["chunked prefill"] == 3
    assert len(told.told) == sum(told.narrator.seen.values()), "told each time, that it may be counted"
