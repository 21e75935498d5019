"""Pauses before starts, and the end after too many short lives."""

from __future__ import annotations

import pytest

from inflight.server.processes import short_lives
from inflight.server.processes.short_lives import MAX_PAUSE, MAX_SHORT_LIVES, SHORT_LIFE, ShortLives


def test_short_lives_one_after_another_end_it_and_a_long_one_forgives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(short_lives.time, "monotonic", lambda: now)
    lives = ShortLives()

    def live(seconds: float, was_ready: bool = True) -> float | None:
        nonlocal now
        lives.begin()
        now += seconds
        return lives.end(was_ready=was_ready)

    few = [live(1.0) for _ in range(MAX_SHORT_LIVES - 1)]
    assert few[0] == 0.0 and few[1:] == sorted(few[1:]) and few[1] > 0.0 and few[-1] == MAX_PAUSE  # type: ignore[type-var]
    assert live(SHORT_LIFE) == 0.0
    assert [live(SHORT_LIFE, was_ready=False) is None for _ in range(MAX_SHORT_LIVES)] == [False] * 4 + [True]
