"""The runners' loop: requests as they fall due, tokens with their times."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.peers.stepping import Work, run

from .builders import job
from .fake_engine import FakeEngine


class Recording(FakeEngine):
    """Notes what was added before each step."""

    def __init__(self, **settings: object) -> None:
        super().__init__(job(**settings))
        self.added: list[int] = []
        self.steps: list[list[int]] = []

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        super().add(number, prompt, output_tokens)
        self.added.append(number)

    def step(self) -> Iterable[tuple[int, int]]:
        self.steps.append(list(self.added))
        return list(super().step())


def test_all_tokens_are_stamped_in_order() -> None:
    answer = run(Recording(), [Work(0.0, [1], 3), Work(0.0, [1, 2], 1)])
    first, second = answer["times"]
    assert (len(first), len(second)) == (3, 1)
    assert answer["start"] <= first[0] == second[0] <= first[1] <= first[2], "tokens of a step have its time"


def test_a_request_waits_for_its_time_and_the_engine_is_not_asked_for_nothing() -> None:
    engine = Recording()
    answer = run(engine, [Work(0.05, [1], 1), Work(0.0, [1], 2)])
    late, early = answer["times"]
    assert late[0] - answer["start"] >= 0.05 > early[0] - answer["start"]
    assert engine.steps == [[1], [1], [1, 0]]


def test_what_falls_due_during_a_step_joins_after_it() -> None:
    engine = Recording(seconds=0.02)
    run(engine, [Work(0.0, [1], 3), Work(0.01, [1], 1)])
    assert engine.steps[:2] == [[0], [0, 1]]


def test_numbers_never_come_again() -> None:
    engine = Recording()
    run(engine, [Work(0.0, [1], 1)], numbered=0)
    answer = run(engine, [Work(0.0, [1], 2)], numbered=1)
    assert engine.added == [0, 1]
    assert len(answer["times"][0]) == 2
