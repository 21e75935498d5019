"""Waits that an attack added, and limits that it broke."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.attack.health import EVERY
from benchmarks.attack.memory import back_after
from benchmarks.attack.sightings import Seen
from benchmarks.attack.waits import Outcome, expected, waits

_HEALTH, _GAPS = [0.002] * 200, [0.01] * 400
CALM = Seen(health=_HEALTH, gaps=_GAPS, own_health=_HEALTH, own_gaps=_GAPS, same=20)
HELD = Outcome(quiet=CALM, attacked=CALM, peak_mb=10.0, back=0.5, tree_mb=120.0)


def test_a_long_wait_stands_for_all_that_was_to_come_meanwhile() -> None:
    assert expected([0.01, 0.05], 0.02) == pytest.approx([0.01, 0.05, 0.03, 0.01])
    assert expected([0.5], 0.0) == [0.5], "without a usual step nothing is known of what was to come"


def test_a_stop_of_a_second_shows_at_p99_though_it_is_one_wait_of_many() -> None:
    stopped = [0.002] * 999 + [1.0]
    assert waits(stopped).p99 < 0.01
    assert waits(expected(stopped, EVERY)).p99 > 0.5


def test_what_is_beyond_the_usual_is_never_less_than_nothing() -> None:
    more = waits([0.001, 0.003]) - waits([0.002, 0.002])
    assert (more.p50, more.worst) == (0.0, pytest.approx(0.001))


def test_limits_that_hold_are_reported() -> None:
    assert HELD.broken == []


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"attacked": replace(CALM, own_health=[0.002] * 190 + [0.2] * 10)}, ["/health p99"]),
        ({"attacked": replace(CALM, own_gaps=[0.01] * 4000 + [0.3])}, ["streams longest"]),
        ({"attacked": replace(CALM, unanswered=2)}, ["/health unanswered 2 times"]),
        ({"attacked": replace(CALM, wrong=Counter({"another text": 1}))}, ["1 streams: another text"]),
        ({"attacked": replace(CALM, same=0)}, ["no stream came to its end"]),
        ({"peak_mb": 400.0}, ["memory"]),
        ({"back": None}, ["memory stays"]),
        ({"back": 11.0}, ["memory stays"]),
        ({"tree_mb": 1001.0}, ["1 GB"]),
        ({"died": "the server ended with code -9"}, ["the server ended with code -9"]),
    ],
)
def test_each_limit_that_is_broken_is_named(change: dict[str, object], broken: list[str]) -> None:
    assert replace(HELD, **change).broken == broken  # type: ignore[arg-type]


def test_what_the_machine_lacked_is_no_fault_of_the_servers_but_reported() -> None:
    crowded = replace(HELD, attacked=replace(CALM, health=[0.002] * 190 + [0.2] * 10))
    assert (crowded.broken, crowded.for_want_of_cores) == ([], ["/health p99"])


def test_memory_is_back_when_it_is_low_and_stays_so() -> None:
    times = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert back_after(times, [9, 9, 1, 1, 1], end=0.5, most=2) == pytest.approx(0.6)
    assert back_after(times, [9, 1, 9, 1, 1], end=0.5, most=2) == pytest.approx(1.6), "a dip is not the end"
    assert back_after(times, [9, 1, 1, 1, 1], end=0.5, most=2) == 0.0
    assert back_after(times, [9, 9, 9, 9, 9], end=0.5, most=2) is None
