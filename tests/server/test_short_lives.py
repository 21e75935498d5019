"""Pauses before starts, and the end after too many short lives."""

from __future__ import annotations

import pytest

from inflight.server.processes import short_lives
from inflight.server.processes.short_lives import MAX_PAUSE, MAX_SHORT_LIVES, SHORT_LIFE, ShortLives


def test_short_lives_one_after_another_end_it_and_a_long_one_forgives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(short_lives.time, "monotonic", lambda: now)
    lives = ShortLives()

    def live(seconds: float, loading_seconds: float = 0.0) -> float | None:
        nonlocal now
        now += loading_seconds
        for _ in range(2):  # an API process is ready again for each engine
            lives.ready()
            now += seconds / 2
        return lives.end()

    few = [live(1.0) for _ in range(MAX_SHORT_LIVES - 1)]
    assert few[0] == 0.0 and few[1:] == sorted(few[1:]) and few[1] > 0.0 and few[-1] == MAX_PAUSE  # type: ignore[type-var]
    assert live(SHORT_LIFE) == 0.0
    assert [live(SHORT_LIFE / 2, loading_seconds=SHORT_LIFE) is None for _ in range(MAX_SHORT_LIVES)] == [False] * 4 + [
        True
    ]


def test_lives_that_were_never_ready_are_short() -> None:
    lives = ShortLives()
    assert [lives.end() is None for _ in range(MAX_SHORT_LIVES)] == [False] * 4 + [True]
