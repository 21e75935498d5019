"""An engine in miniature, drawn while it works and from its record: the same picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from core.builders import request
from core.harness import FaultyExecutor, Setup
from msgspec import structs

from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import SLO
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder
from inflight.live.engine_feed import EngineFeed
from inflight.live.frames import Frame, decode, encode
from inflight.live.observer import MAX_ENTRIES, LiveObserver
from inflight.live.record_index import read_index
from inflight.live.recorded import RecordFeed, hello_of, period_of
from inflight.records.schema import RecordError

STEP = 0.25  # seconds
SETUP = Setup(num_blocks=24, block_size=4, max_rows=3, token_budget=8, max_model_len=64)


class Drawn:
    """An engine with a record and a feed; a frame after each step."""

    def __init__(self, path: Path, setup: Setup = SETUP, depth: int = 1):
        self.file = path.open("wb")
        self.loop = EngineLoop(
            setup.scheduler(),
            FaultyExecutor(setup.capacity, lambda plan: STEP),
            VirtualClock(),
            depth=depth,
            observers=[Recorder(self.file, {"strategy": setup.strategy, "prefix_caching": True}, setup.capacity)],
        )
        self.observer = LiveObserver(self.loop.latency)
        self.loop.add_observer(self.observer)
        self.feed = EngineFeed(self.loop, self.observer)
        self.frames: list[Frame] = []

    def look(self) -> Frame:
        self.frames.append(self.feed.frame(self.feed.look()))
        return self.frames[-1]

    def advance(self) -> None:
        outcome = self.loop.advance()
        if isinstance(outcome, WaitUntil):
            self.loop.clock.wait_until(outcome.time)

    def drain(self, looks: bool = True) -> None:
        while not self.loop.idle:
            self.advance()
            if looks:
                self.look()
        self.file.flush()


def busy(drawn: Drawn) -> None:
    """Seven requests for three rows, in two lanes."""
    for index in range(7):
        lane = "batch" if index % 3 == 2 else "interactive"
        drawn.loop.add(
            request(f"r{index}", prompt=[index, 1, 2, 3] * 3, output=5 + index, lane=lane, slo=SLO(ttft=1.0, itl=0.3))
        )


@pytest.fixture
def drawn(tmp_path: Path) -> Drawn:
    return Drawn(tmp_path / "record.jsonl")


def test_without_a_viewer_nothing_is_stored(drawn: Drawn) -> None:
    busy(drawn)
    drawn.drain(looks=False)
    assert not drawn.observer.watching and drawn.observer.drain() == ([], 0)


def test_frames_show_all_requests_and_tokens(drawn: Drawn) -> None:
    drawn.look()
    busy(drawn)
    drawn.drain()
    ended = [one for frame in drawn.frames for one in frame.ended]
    assert {one.info.request_id: one.output_tokens for one in ended} == {f"r{index}": 5 + index for index in range(7)}
    shown = [info for frame in drawn.frames for info in frame.requests]
    assert len({info.number for info in shown}) == len(shown) == 7, "each is shown once"
    for one in ended:
        assert one.account is not None and one.account.total == pytest.approx((one.at - one.info.arrival) * 1e3, abs=1)
    tokens = sum(step.prompt + step.decode for frame in drawn.frames for step in frame.steps)
    assert tokens == sum(run.tokens for frame in drawn.frames for run in frame.runs if run.work < 2)
    firsts = [one.account.ttft / 1e3 for one in ended if one.account is not None and one.account.ttft is not None]
    early = next(frame for frame in drawn.frames if frame.end >= 8.0)
    ttft, seen = early.rates.ttft, [first for first in firsts if first <= early.end]
    assert (ttft.with_target, ttft.met) == (len(seen), sum(first <= 1.0 for first in seen)) and len(seen) > 2
    numbers = [frame.number for frame in drawn.frames]
    assert numbers == list(range(len(numbers)))


def test_no_gap_is_counted_against_a_target_for_the_mean(drawn: Drawn) -> None:
    drawn.look()
    for name, slo in (("tpot", SLO(tpot=STEP / 2)), ("both", SLO(itl=2 * STEP, tpot=STEP / 2))):
        drawn.loop.add(request(name, output=6, slo=slo))
    drawn.drain()
    drawn.file.flush()
    index = read_index(Path(drawn.file.name))
    for frames in (drawn.frames, list(RecordFeed(index, STEP).frames())):
        shown = {info.request_id: info for frame in frames for info in frame.requests}
        targets = {name: (info.itl_target, info.tpot_target) for name, info in shown.items()}
        assert targets == {"tpot": (0.0, STEP / 2), "both": (2 * STEP, STEP / 2)}
        itl = max((frame.rates.itl for frame in frames), key=lambda one: one.count)
        assert (itl.count, itl.with_target, itl.met) == (10, 5, 5)


def test_frames_show_queues_and_block_owners(drawn: Drawn) -> None:
    busy(drawn)
    drawn.advance()
    frame = drawn.look()
    interactive, batch = frame.lanes
    assert (interactive.running + batch.running, interactive.waiting + batch.waiting) == (3, 4) or interactive.running
    assert frame.blocks is not None
    cells = Counter[int]()
    for owner, count in zip(frame.blocks.map[::2], frame.blocks.map[1::2], strict=True):
        cells[owner] += count
    assert cells.total() == SETUP.num_blocks
    assert {number: count for number, count in cells.items() if number >= 0} == {
        one.number: one.blocks - one.shared for one in frame.holders
    }
    assert frame.blocks.held + frame.blocks.evictable + frame.blocks.free == SETUP.num_blocks


def test_a_late_viewer_sees_the_requests_in_flight(drawn: Drawn) -> None:
    busy(drawn)
    for _ in range(4):
        drawn.advance()
    first = drawn.look()
    assert not first.steps and first.lanes[0].running + first.lanes[1].running == 3
    drawn.drain()
    works = {run.work for frame in drawn.frames for run in frame.runs}
    assert works <= {0, 1, 4}, "what was computed before the first frame is not computed again"
    ended = {one.info.request_id for frame in drawn.frames for one in frame.ended}
    assert ended == {f"r{index}" for index in range(7)}


def test_a_viewer_that_comes_back_starts_again(drawn: Drawn) -> None:
    drawn.look()
    busy(drawn)
    drawn.advance()
    last = drawn.look().number
    drawn.feed.leave()
    drawn.advance()
    assert not drawn.observer.watching
    again = drawn.look()
    assert again.number == last + 1 and not again.steps
    drawn.drain()
    assert sum(len(frame.ended) for frame in drawn.frames) == 7


def test_a_ring_that_is_full_says_what_it_lost(drawn: Drawn) -> None:
    drawn.look()
    while drawn.loop.clock.now() < MAX_ENTRIES * STEP:
        drawn.loop.add(request(f"r{drawn.loop.clock.now()}", prompt=[1, 2, 3], output=40))
        drawn.drain(looks=False)
    look = drawn.feed.look()
    assert len(look.entries) == MAX_ENTRIES and look.lost > 0
    assert drawn.feed.frame(look).lost == look.lost


@pytest.mark.parametrize("depth", [1, 2])
def test_a_record_makes_the_same_picture(tmp_path: Path, depth: int) -> None:
    drawn = Drawn(tmp_path / "record.jsonl", depth=depth)
    drawn.look()
    busy(drawn)
    drawn.drain()
    index = read_index(tmp_path / "record.jsonl")
    frames = list(RecordFeed(index, STEP).frames())

    def picture(some: list[Frame]) -> dict[tuple[int, int, int], tuple[float, float, int]]:
        """Return start, end and tokens of each row, sequence and work."""
        found: dict[tuple[int, int, int], tuple[float, float, int]] = {}
        for run in (run for frame in some for run in frame.runs):
            key = (run.row, run.sequence, run.work)
            start, end, tokens = found.get(key, (run.start, run.end, 0))
            found[key] = min(start, run.start), max(end, run.end), tokens + run.tokens
        return found

    assert picture(frames) == picture(drawn.frames)
    assert [[one.info for one in frame.ended] for frame in frames if frame.ended] == [
        [one.info for one in frame.ended] for frame in drawn.frames if frame.ended
    ]
    accounts = {one.info.request_id: one.account for frame in frames for one in frame.ended}
    for one in (one for frame in drawn.frames for one in frame.ended):
        recorded = accounts[one.info.request_id]
        assert one.account is not None and recorded is not None
        assert recorded.total == pytest.approx(one.account.total, abs=0.01)
        assert recorded.queued_by == pytest.approx(one.account.queued_by, abs=0.01)
    alive = {frame.end: sum(lane.waiting + lane.running for lane in frame.lanes) for frame in drawn.frames}
    recorded_alive = {frame.end: sum(lane.waiting + lane.running for lane in frame.lanes) for frame in frames}
    at = [end for end in alive if end in recorded_alive and end > 0]
    assert len(at) > 30 and recorded_alive[frames[-1].end] == 0
    if depth == 1:  # at 2, an ended request keeps its row until its last step in flight
        assert [recorded_alive[end] for end in at] == [alive[end] for end in at]
    predicted = [step.predicted for frame in frames for step in frame.steps]
    seen = [step.predicted for frame in drawn.frames for step in frame.steps]
    assert seen[20:] == pytest.approx(predicted[20:], abs=1e-6) and seen[20] == pytest.approx(STEP)


def test_a_record_that_is_cut_off_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    drawn = Drawn(tmp_path / "record.jsonl")
    busy(drawn)
    drawn.drain()
    whole = (tmp_path / "record.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    feed = RecordFeed(read_index(cut), STEP)
    frames = list(feed.frames())
    assert any(frame.runs for frame in frames) and len(feed.notes) == 1 and "cut off" in feed.notes[0]
    assert any("not ended" in info.request_id for frame in frames for info in frame.requests)


def test_blocks_beyond_the_engines_are_a_note(tmp_path: Path) -> None:
    drawn = Drawn(tmp_path / "record.jsonl")
    busy(drawn)
    drawn.drain()
    index = read_index(tmp_path / "record.jsonl")
    header = structs.replace(index.header, capacity=structs.replace(index.header.capacity, num_blocks=2))
    feed = RecordFeed(structs.replace(index, header=header), STEP)
    assert list(feed.frames())
    (note,) = feed.notes
    assert "takes block 2, but the engine has 2 blocks" in note


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.jsonl"
    path.write_text('{"kind": "step"}\n')
    with pytest.raises(RecordError, match="starts with kind"):
        read_index(path)
    drawn = Drawn(tmp_path / "record.jsonl")
    drawn.file.flush()
    with pytest.raises(RecordError, match="0 steps"):
        read_index(tmp_path / "record.jsonl")


def test_messages_are_read_as_they_were_written(drawn: Drawn, tmp_path: Path) -> None:
    drawn.look()
    busy(drawn)
    drawn.drain()
    index = read_index(tmp_path / "record.jsonl")
    hello = hello_of(index, "a <b>title</b>", period_of(index))
    assert decode(encode(hello)) == hello
    for frame in drawn.frames:
        assert decode(encode(frame)) == frame


def test_a_long_record_is_few_frames_and_is_not_kept(tmp_path: Path) -> None:
    drawn = Drawn(tmp_path / "record.jsonl")
    for number in range(60):
        drawn.loop.add(request(f"r{number}", prompt=[1, 2, 3], output=40))
        drawn.drain(looks=False)
    index = read_index(tmp_path / "record.jsonl")
    assert index.steps > 2000
    feed = RecordFeed(index, period_of(index, frames=50))
    assert 45 <= sum(1 for _ in feed.frames()) <= 52
    assert not feed.notes


def test_the_host_is_drawn_with_the_sequences_that_own_its_blocks(tmp_path: Path) -> None:
    """Live and from the record."""
    setup = Setup(
        num_blocks=10, block_size=4, max_rows=3, token_budget=16, max_model_len=64, preemption="swap", host_blocks=16
    )
    drawn = Drawn(tmp_path / "record.jsonl", setup)
    drawn.look()
    for index in range(3):
        drawn.loop.add(request(f"r{index}", prompt=[index] * 8, output=16))
    drawn.drain()
    recorded = list(RecordFeed(read_index(tmp_path / "record.jsonl"), STEP).frames())

    def wanted(frames: list[Frame]) -> set[int]:
        hosts = [one.blocks.host for one in frames if one.blocks is not None and one.blocks.host is not None]
        assert hosts and all(sum(one.map[1::2]) == one.blocks == 16 for one in hosts)
        return {owner for one in hosts for owner in one.map[::2] if owner >= 0}

    assert wanted(drawn.frames) == wanted(recorded) != set()
    last = drawn.frames[-1].blocks
    assert last is not None and last.host is not None and (last.host.wanted, last.host.kept) == (0, 0)


def test_a_living_request_has_an_account(drawn: Drawn) -> None:
    drawn.look()
    busy(drawn)
    drawn.advance()
    drawn.advance()
    living = drawn.feed.living("r5")
    assert (
        living is not None and living.timings.queue_ms > 0 and living.timings.total_ms == drawn.loop.clock.now() * 1e3
    )
    drawn.drain()
    assert drawn.feed.living("r5") is None
