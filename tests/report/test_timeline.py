"""Rows, blocks and queues over time: everything adds up, and nothing is in two places."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from msgspec import structs

from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.static import Static
from inflight.records.computed import Work
from inflight.records.schema import of_kind, read_records
from inflight.report.engine_figures import engine_figures
from inflight.report.pictures import batch_over_time
from inflight.report.run import Run
from inflight.report.steps.over_time import block_owners, phases, running, service, waiting

from .recorded import Engine, engine_of, short_of_blocks, workload


@pytest.fixture(params=["static", "chunked", "preempted", "swapped", "deep"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    match request.param:
        case "static":
            return Engine(Static(6, 0.1)).run(tmp_path, workload(20))
        case "chunked":
            return Engine(Chunked(38)).run(tmp_path, workload(20, lanes=("interactive", "batch")))
        case "deep":
            return Engine(Chunked(38), depth=2).run(tmp_path, workload(20))
        case "swapped":
            return short_of_blocks(tmp_path, "swap", host_blocks=40)
    return short_of_blocks(tmp_path)


def test_tokens_of_rows_are_those_of_the_steps(run: Run, tmp_path: Path) -> None:
    engine = engine_of(run)
    planned = [step.features.tokens for step in of_kind(list(read_records(tmp_path / "record.jsonl")), "step")]
    assert [engine.steps.tokens(index) for index in range(len(planned))] == planned
    runs = engine.rows.runs
    assert sum(one.tokens + one.padded for one in runs) == sum(planned)
    assert sum(one.padded for one in runs) == sum(engine.steps.padding)
    assert sum(one.tokens for one in runs if one.state is Work.DECODE) <= sum(engine.steps.decode)


def test_runs_on_a_row_never_overlap_and_are_as_long_as_they_can_be(run: Run) -> None:
    by_row = defaultdict(list)
    for one in engine_of(run).rows.runs:
        assert one.end > one.start
        by_row[one.row].append(one)
    for runs in by_row.values():
        for earlier, later in itertools.pairwise(runs):
            assert earlier.end <= later.start
            same = (earlier.sequence, earlier.state) == (later.sequence, later.state)
            assert not same or (earlier.padded > 0) != (later.padded > 0) or earlier.end < later.start


def test_every_block_has_one_owner_at_every_moment(run: Run) -> None:
    engine = engine_of(run)
    owners = block_owners(engine)
    everything = engine.capacity.num_blocks
    bands = [*owners.owners.values(), owners.shared, owners.cached, owners.free]
    for time in sorted({time for function in bands for time in function.times}):
        held = [function.at(time) for function in bands]
        assert sum(held) == everything
        assert min(held) >= 0


def test_held_blocks_are_those_of_the_tables(run: Run, tmp_path: Path) -> None:
    """Counted again from the plans, with no thought of owners."""
    engine = engine_of(run)
    tables: dict[int, list[int]] = {}
    steps = of_kind(list(read_records(tmp_path / "record.jsonl")), "step")
    for index, step in enumerate(steps):
        for row in step.plan.freed_rows:
            del tables[row]
        for chunk in step.plan.chunks:
            tables.setdefault(chunk.row, []).extend(chunk.new_blocks)
        assert engine.steps.held_blocks[index] == len({block for table in tables.values() for block in table})
        assert engine.steps.rows[index] == len(tables)
        assert 0 < engine.steps.used[index] <= engine.steps.allocated[index]


def test_blocks_behind_a_window_are_given_up(tmp_path: Path) -> None:
    """Two of three KV groups keep 20 positions each: of 10 blocks of positions they hold 10 + 2 + 2 in the end."""
    one = workload(1, prompts=(120,), outputs=(40,))
    engine = engine_of(Engine(num_blocks=60, windows=(0, 20, 20)).run(tmp_path, one))
    assert engine.steps.held_blocks[0] == 3 * 8 and engine.steps.held_blocks[-1] in (14, 15, 16)
    assert all(used <= held for used, held in zip(engine.steps.used, engine.steps.allocated, strict=True))
    owners = block_owners(engine)
    bands = [*owners.owners.values(), owners.shared, owners.cached, owners.free]
    for time in sorted({time for function in bands for time in function.times}):
        assert sum(function.at(time) for function in bands) == 60


def test_what_waits_and_runs_comes_to_nothing_in_the_end(run: Run) -> None:
    engine = engine_of(run)
    for function in (waiting(engine), running(engine)):
        assert function.values[-1] == 0
        assert min(function.values) >= 0
    assert running(engine).greatest <= engine.capacity.max_rows


def test_a_sequence_is_in_one_place_at_a_time(run: Run) -> None:
    places = defaultdict(list)
    for phase in phases(engine_of(run)):
        places[phase.sequence].append(phase)
    assert len(places) == len(run.observations)
    for of_one in places.values():
        ordered = sorted(of_one, key=lambda phase: phase.start)
        for earlier, later in itertools.pairwise(ordered):
            assert earlier.end <= later.start + 1e-9


def test_service_is_what_tenants_were_given(tmp_path: Path) -> None:
    engine = engine_of(short_of_blocks(tmp_path))
    served = service(engine)
    assert set(served) == {"anna", "bob", "cleo"}
    assert {name: function.values[-1] for name, function in served.items()} == engine_figures(engine).service


def test_static_batching_shows_its_padding(tmp_path: Path) -> None:
    engine = engine_of(Engine(Static(4, 0.1), max_rows=4).run(tmp_path, workload(4, gap=0.0, seed=1)))
    states = Counter(one.state for one in engine.rows.runs)
    assert states[Work.PADDING] > 0, "rows that ended go on as padding"
    prefills = [one for one in engine.rows.runs if one.state is Work.PREFILL]
    assert len({one.tokens + one.padded for one in prefills}) == 1, "prompts are padded to the longest"
    assert engine_figures(engine).padding_waste > 0.2


def test_a_close_up_shows_no_pause(tmp_path: Path) -> None:
    """Bursts of about a hundred steps, and a minute between them without requests."""
    bursts = [
        structs.replace(one, arrival=60 * (number // 12) + one.arrival % 1) for number, one in enumerate(workload(60))
    ]
    engine = engine_of(Engine(num_blocks=200).run(tmp_path, bursts))
    steps = engine.steps
    _, close = batch_over_time(engine)
    first, last = (int(number) for number in re.findall(r"\d+", close.title))
    assert 20 < last - first < 120
    assert max(steps.began[index + 1] - steps.ended[index] for index in range(first, last)) < 1.0


def test_a_thousand_decodes_are_one_run(tmp_path: Path) -> None:
    engine = engine_of(Engine(Continuous(512)).run(tmp_path, workload(1, outputs=(60,))))
    runs = [(one.state, one.tokens) for one in engine.rows.runs]
    assert runs == [(Work.PREFILL, engine.requests[0].prompt_tokens), (Work.DECODE, 59)]


def test_rows_that_are_held_without_being_computed_are_seen(tmp_path: Path) -> None:
    """A foreground prompt that takes the whole budget leaves nothing to the decodes of a background lane."""
    mixed = workload(12, gap=0.1, lanes=("batch", "interactive"), prompts=(300,), outputs=(30,))
    engine = engine_of(Engine(Chunked(38), max_rows=12, num_blocks=400).run(tmp_path, mixed))
    assert any(one.state is Work.IDLE for one in engine.rows.runs)


def test_preempted_sequences_are_seen_to_come_back(tmp_path: Path) -> None:
    engine = engine_of(short_of_blocks(tmp_path))
    away = [phase for phase in phases(engine) if phase.kind == "preempted"]
    preempted = sum(one.timings.preempted_ms for one in engine.requests) / 1e3
    assert len(away) == engine.preemptions > 0
    assert 0 < sum(phase.end - phase.start for phase in away) <= preempted
    assert any(one.state is Work.RECOMPUTE for one in engine.rows.runs)
