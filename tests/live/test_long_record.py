"""Long records: shown in a process whose memory does not grow with their steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.long_record import shown, write_record
from inflight.live.record_index import read_index
from inflight.live.recorded import MAX_FRAMES, RecordFeed, period_of


def test_a_made_record_is_one_that_the_recorder_wrote(tmp_path: Path) -> None:
    """And is read to its end."""
    index = read_index(write_record(tmp_path / "r.jsonl", 700))
    feed = RecordFeed(index, period_of(index, 100))
    frames = list(feed.frames())
    assert index.steps == 700 and feed.notes == []
    assert sum(step.steps for frame in frames for step in frame.steps) == 700
    ended = [one for frame in frames for one in frame.ended]
    assert len(ended) == len(index.requests) > 20 and all(one.output_tokens == 160 for one in ended)


@pytest.mark.wide
def test_eight_times_the_steps_take_hardly_more_memory(tmp_path: Path) -> None:
    """60,000 steps are 60 MB of file; of a million, which are 1.0 GB, the process has 181 MB at most
    (`python -m benchmarks.long_record`)."""
    peaks = []
    for steps in (7_500, 60_000):
        path = write_record(tmp_path / f"{steps}.jsonl", steps)
        one = shown(path)
        assert MAX_FRAMES <= one["frames"] <= MAX_FRAMES + 2
        peaks.append(one["peak_mb"])
        size = path.stat().st_size / 1e6
        path.unlink()
    assert peaks[1] - peaks[0] < 20 < size / 2, "it streams, and is not loaded"
