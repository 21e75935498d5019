"""Records of honest clients, and the part of them within a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attack.sightings import Sightings


def stream(sent: float, *arrivals: float, **more: Any) -> dict[str, Any]:
    ended = arrivals[-1] if arrivals else sent
    return {"sent": sent, "ended": ended, "status": 200, "complete": True, "same": True, "arrivals": arrivals, **more}


def asked(at: float, wait: float, failed: int = 0, queued: float = 0.0) -> list[float]:
    return [at, wait, failed, at + wait, queued]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "health", tmp_path / "honest"


def write(path: Path, *lines: Any) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_only_what_lies_within_the_windows_counts(files: tuple[Path, Path]) -> None:
    health, honest = files
    write(
        health, *(asked(at, wait, failed) for at, wait, failed in ((1, 0.1, 0), (2, 0.2, 1), (3, 0.3, 0), (5, 0.5, 0)))
    )
    write(honest, {"ready": 0.5}, stream(0.9, 1.1, 2.1, 4.0, 4.1), stream(2.2, 2.5, 2.75, 2.8))
    seen = Sightings(health, honest).within((1.5, 3.5), (4.5, 5.5))
    assert (seen.health, seen.unanswered) == ([0.2, 0.3, 0.5], 1)
    assert seen.gaps == pytest.approx([1.0, 0.25]), "a gap counts when it ends, the last piece is none"
    assert seen.ttfts == pytest.approx([0.3])
    assert (seen.same, seen.wrong) == (1, {})


def test_streams_that_went_wrong_are_reported_with_their_reason(files: tuple[Path, Path]) -> None:
    health, honest = files
    write(
        honest,
        stream(1.0, 1.5, same=False),
        stream(1.0, 1.5, same=False, complete=False, status=429),
        stream(1.0, same=False, complete=False, status=0),
    )
    seen = Sightings(health, honest).within((0.0, 2.0))
    assert seen.wrong == {"another text": 1, "429, not to its end": 1, "no answer, not to its end": 1}


def test_a_line_that_is_half_written_is_read_when_it_is_whole(files: tuple[Path, Path]) -> None:
    health, honest = files
    health.write_text("[1.0, 0.1, 0, 1.1, 0.0]\n[2.0, 0")
    sightings = Sightings(health, honest)
    assert sightings.within((0.0, 9.0)).health == [0.1]
    with health.open("a") as file:
        file.write(".2, 0, 2.2, 0.0]\n")
    assert sightings.within((0.0, 9.0)).health == [0.1, 0.2]
    assert sightings.last_answer() == pytest.approx(2.2)


def test_time_for_which_the_event_loop_had_no_core_is_reported_separately(files: tuple[Path, Path]) -> None:
    health, honest = files
    write(health, asked(1.0, 0.1), asked(2.0, 0.5, queued=0.3), asked(3.0, 0.1, queued=0.3))
    write(honest, stream(2.4, 2.45, 2.5, 2.9, 2.95))
    seen = Sightings(health, honest).within((0.0, 9.0))
    between = 0.3 * 0.5 / 1.4  # the looks were at 1.1 and 2.5
    assert seen.own_health == pytest.approx([0.1, 0.5 - between, 0.1])
    assert seen.own_gaps == pytest.approx([0.05 - 0.3 * 0.05 / 1.4, 0.4])
