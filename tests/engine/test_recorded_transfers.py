"""Records have the ends of transfers beside the steps, so that runs with them replay."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from core.builders import request
from core.harness import BATCH, LaneSetup, Setup
from core.kv.test_host_tier import SCARCE
from core.kv.test_transfers import drawn
from msgspec import structs

from inflight.core.types.plan import Transferred, WaitUntil
from inflight.core.types.request import RequestRefused
from inflight.engine.loop import EngineLoop
from inflight.records.schema import Line, RecordError, of_kind
from inflight.simulate.replay import Outcome, replay

from .test_recorder import Recorded, rebuilt_setup

Lines = list[Line]


def again(records: Lines) -> Outcome:
    return replay(records, rebuilt_setup(records[0]).scheduler)[1]


def under_pressure(setup: Setup, draw: Random, folder: Path) -> Lines:
    """More than fits, that comes, goes and breaks at random."""
    recorded = Recorded(setup, broken=frozenset(draw.sample(range(40), draw.choice([0, 0, 2]))))
    loop = recorded.loop

    def advance(rounds: int) -> None:
        for _ in range(rounds):
            found = loop.advance()
            if isinstance(found, WaitUntil):
                loop.clock.wait_until(found.time)

    for number in range(10):
        tokens = draw.randint(1, min(8, setup.num_blocks * setup.block_size))
        lane, length = draw.choice(["interactive", "batch"]), draw.randint(1, 12)
        with contextlib.suppress(RequestRefused):
            prompt = [draw.randint(0, 1) for _ in range(tokens)]
            loop.add(request(f"r{number}", prompt, output=length, lane=lane, arrival=loop.clock.now()))
        advance(draw.randint(0, 3))
        if draw.random() < 0.15:
            loop.abort(f"r{draw.randint(0, number)}")
            loop.clock.passed(1 / 64)
    loop.run()
    return recorded.records(folder)


def test_runs_with_transfers_beside_the_steps_replay(tmp_path: Path) -> None:
    """Every strategy and policy; transfers end with steps and between them, and are lost."""
    with_steps: list[Transferred] = []
    between: list[Transferred] = []
    for seed in range(120):
        setup, draw = drawn(seed)
        records = under_pressure(setup, draw, tmp_path)
        assert again(records).difference is None, f"seed {seed}: {setup}"
        for step in of_kind(records, "step"):
            with_steps += step.transferred
        for line in of_kind(records, "transfers"):
            between += line.transferred
    for ended in (with_steps, between):
        assert len(ended) > 20 and 5 < sum(one.error is not None for one in ended) < len(ended) / 2


class Arrivals:
    """Requests that come while the engine is unlocked: before and after what it waits for."""

    def __init__(self, loop: EngineLoop, draw: Random, tokens: int):
        self.left, self._loop, self._draw, self._tokens = 20, loop, draw, tokens

    def add(self) -> None:
        draw = self._draw
        self.left -= 1
        prompt = [draw.randint(0, 1) for _ in range(draw.randint(1, self._tokens))]
        lane, length = draw.choice(["interactive", "interactive", "batch"]), draw.randint(1, 12)
        one = request(f"r{self.left}", prompt, output=length, lane=lane, priority=draw.randint(0, 5))
        with contextlib.suppress(RequestRefused):
            self._loop.add(structs.replace(one, arrival=self._loop.clock.now()))

    def __enter__(self) -> None:
        if self.left and self._draw.random() < 0.3:
            self.add()

    __exit__ = lambda self, *_: self.__enter__()  # noqa: E731


def test_requests_that_come_while_a_plan_waits_for_transfers_replay(tmp_path: Path) -> None:
    """An attempt that yielded no plan may have begun transfers, without the request that came behind it."""
    num_attempts = 0
    for seed in (2, 33, 92, 106, 168, 175, 191, *range(200, 230)):
        draw = Random(seed)
        setup = replace(
            SCARCE,
            transfer_polls=draw.choice([(1, 0, 3), (2, 5), (4,)]),
            num_blocks=draw.randint(4, 8),
            depth=draw.randint(1, 2),
            max_rows=draw.randint(2, 4),
            lanes=(LaneSetup(policy=draw.choice(["fcfs", "priority", "sjf", "fair", "deadline"])), BATCH),
            prefix_caching=draw.random() < 0.5,
            lane_floor=draw.choice([0.0, 0.4]),
        )
        recorded = Recorded(setup)
        arrivals = Arrivals(recorded.loop, draw, min(8, 2 * setup.num_blocks))
        arrivals.add()
        while arrivals.left:
            recorded.loop.advance(arrivals)
            if arrivals.left and (recorded.loop.idle or draw.random() < 0.1):
                arrivals.add()
        recorded.loop.run()
        records = recorded.records(tmp_path)
        assert again(records).difference is None, f"seed {seed}: {setup}"
        num_attempts += sum(len(one.attempted) for one in of_kind(records, "attempts"))
    assert num_attempts > 50


def test_an_attempt_that_yields_a_plan_is_found_out(records: Lines) -> None:
    line = of_kind(records, "attempts")[0]
    changed = [one for one in records if one is not line]
    changed.append(structs.replace(line, before_step=1, before_commit=1))
    found = again(changed).difference
    assert found is not None and "is planned, where the record's run found none" in found
    with pytest.raises(RecordError, match="within step 9, which is not in flight"):
        again([*records, structs.replace(line, within=9)])


@pytest.fixture
def records(tmp_path: Path) -> Lines:
    """Two that do not fit together."""
    recorded = Recorded(replace(SCARCE, transfer_polls=(4,), lost_transfers=2))
    recorded.loop.add(request("a", [0] * 5, output=6))
    recorded.loop.add(request("b", [1] * 5, output=6))
    recorded.loop.run()
    return recorded.records(tmp_path)


def test_each_transfer_is_reported_once(records: Lines) -> None:
    steps, lines = of_kind(records, "step"), of_kind(records, "transfers")
    ended = [one for record in (*steps, *lines) for one in record.transferred]
    assert sorted(one.transfer_id for one in ended) == [*range(1, len(ended) + 1)] and len(ended) > 2
    assert any(one.error for one in ended) and any(step.transferred for step in steps) and lines


def test_a_transfer_that_ends_elsewhere_is_found_out(records: Lines) -> None:
    assert again(records).difference is None
    lines = of_kind(records, "transfers")
    without = [one for one in records if one is not lines[0]]
    assert again(without).difference is not None
    with pytest.raises(RecordError, match="lines are missing, or changed"):
        again([*records, structs.replace(lines[0])])


def test_one_that_was_never_begun_is_refused(records: Lines) -> None:
    first = of_kind(records, "transfers")[0]
    ended = (structs.replace(first.transferred[0], transfer_id=99), *first.transferred[1:])
    changed = structs.replace(first, transferred=ended)
    with pytest.raises(RecordError, match="transfer 99 ended"):
        again([changed if one is first else one for one in records])
