"""The line before each of several runs."""

from __future__ import annotations

import pytest

from inflight.cli.progress import Remaining, duration
from inflight.launch.engine_loading import loaded


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("known", "said"), [(90.0, "3 runs: about 90 s."), (None, "3 runs: the time left is known after")]
)
def test_each_run_has_its_number_and_what_is_left(known: float | None, said: str) -> None:
    result: list[str] = []
    clock = Clock()
    remaining = Remaining(3, known, result.append, clock)
    assert result[0].startswith(said)
    for what in ("a", "b", "c"):
        remaining.begin(what)
        clock.now += 40.0
    assert result[2:] == ["Run 2 of 3: b; about 80 s left", "Run 3 of 3: c; about 40 s left"]
    assert result[1] == ("Run 1 of 3: a" if known is None else "Run 1 of 3: a; about 90 s left")


def test_a_single_run_is_not_announced_as_several() -> None:
    result: list[str] = []
    Remaining(1, 10.0, result.append)
    assert result == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119, "119 s"), (121, "2 min"), (193, "3 min 10 s"), (3600, "1 h"), (5400, "1 h 30 min")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_how_much_is_loaded_says_something_of_small_models_too() -> None:
    assert loaded(120_000, 310_528) == "120,000 of 310,528 parameters"
    assert loaded(247_000_000, 494_032_768) == "247 of 494 M parameters"
