"""Details of a part of a long record equal those of the whole record, and little is read for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from breadth import first_of

from benchmarks.long_record import write_record
from inflight.live import replays
from inflight.live.frames import Frame
from inflight.live.record_index import RecordIndex, read_index
from inflight.live.recorded import RecordFeed, period_of
from inflight.live.replays import RecordReplay, read_replay


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("long") / "long.jsonl", 3000)


@pytest.fixture
def replay(path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordReplay:
    """Return a replay whose frames were all made."""
    monkeypatch.setattr(replays, "MIN_STEPS", 100)
    replay = read_replay(path)
    assert isinstance(replay, RecordReplay)
    list(replay.frames())
    return replay


def tokens(frames: list[Frame], start: float, end: float) -> dict[int, int]:
    """Return the tokens of each sequence in steps within the interval."""
    found: dict[int, int] = {}
    for run in (run for frame in frames for run in frame.runs):
        if start <= run.start and run.end <= end and run.work < 2:
            found[run.sequence] = found.get(run.sequence, 0) + run.tokens
    return found


def every_step(index: RecordIndex) -> list[Frame]:
    return list(RecordFeed(index, 0.01).frames())


@pytest.mark.parametrize(("start", "end"), first_of([(30.0, 31.0), (0.0, 0.5), (59.0, 61.0)]))
def test_a_stretch_is_as_it_is_in_the_whole(replay: RecordReplay, start: float, end: float) -> None:
    close = list(replay.between(start, end))
    assert close[0].start == start and all(frame.end - frame.start < 0.011 for frame in close)
    whole = every_step(replay.index)
    inside = (start + 0.05, min(end, 60.0) - 0.05)
    assert tokens(close, *inside) == tokens(whole, *inside) != {}
    # In the middle of a step, where no rounding decides what has happened.
    last, mine = (next(one for one in frames if abs(one.end - inside[1]) < 1e-6) for frames in (whole, close))
    counts = [[(lane.running, lane.waiting) for lane in frame.lanes] for frame in (mine, last)]
    assert counts[0] == counts[1]
    assert mine.blocks is not None and last.blocks is not None and mine.blocks.held == last.blocks.held


def test_little_is_read_for_it(replay: RecordReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    planned = RecordFeed._planned
    monkeypatch.setattr(RecordFeed, "_planned", lambda feed, step: (read.append(step.plan.step), planned(feed, step)))
    list(replay.between(45.0, 45.2))
    assert read[0] > 2000 and read[-1] <= 2265, "from a checkpoint on, and no further than asked"
    before = len(read)
    list(replay.between(45.0, 45.2))
    assert len(read) == 2 * before, "a checkpoint can be used again"


def test_where_nothing_was_read_yet_it_is_read_from_the_beginning(path: Path) -> None:
    replay = read_replay(path)
    frames = list(replay.between(3.0, 4.0))
    assert frames[0].start == 3.0 and any(frame.runs for frame in frames)
    index = read_index(path)
    assert list(replay.between(index.end + 5, index.end + 6)) == [], "nothing is there"
    assert period_of(index) > 0.02
