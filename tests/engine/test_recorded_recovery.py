"""A run that was interrupted, in its scheduler or its observers, is recorded whole, and replays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from core.builders import request
from core.harness import LaneSetup, Setup
from core.kv.test_host_tier import SCARCE
from msgspec import structs

from inflight.core.scheduling.interim import InterimSteps
from inflight.core.scheduling.outputs import Outputs
from inflight.core.scheduling.requests import Requests
from inflight.core.scheduling.scheduler import Scheduler
from inflight.engine.observers import EngineObservers
from inflight.engine.recorder import Recorder
from inflight.records.schema import Line, RecordError, of_kind
from inflight.simulate.replay import replay

from .test_recorder import Recorded, Retained, rebuilt_setup

RECOVERIES = 6
SETUP = Setup(num_blocks=30, max_rows=3, token_budget=8, lanes=(LaneSetup(policy="fair"),))


def interrupted_run(setup: Setup, folder: Path, owner: object, name: str) -> list[Line]:
    """Return the records of a run in which a function is interrupted in the middle, when it has done its part."""
    recorded = Recorded(setup)
    loop = recorded.loop
    function: Callable[..., object] = getattr(owner, name)

    def broken(*arguments: object, **named: object) -> object:
        function(*arguments, **named)
        raise KeyboardInterrupt

    for number in range(3):
        loop.add(request(f"before {number}", [number, 1, 0, 1], output=6, n=1 + number % 2, tenant="ab"[number % 2]))
    for _ in range(3):
        loop.advance()
    with mock.patch.object(owner, name, broken), pytest.raises(KeyboardInterrupt):
        loop.add(request("broken", [1, 1, 1], output=3, n=2))
        for _ in range(20):
            loop.advance()
    for number in range(3):
        loop.add(request(f"after {number}", [1, number, 0, 1], output=4, n=2, tenant="ab"[number % 2]))
        loop.advance()
    loop.run()
    assert loop.observer_error is None
    return recorded.records(folder)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (InterimSteps, "arrived"),  # at the end of `add`
        (InterimSteps, "begin"),  # of `plan`, whose step has its number
        (Outputs, "take_tokens"),  # in the middle of `commit`
        (Scheduler, "commit"),
        (Requests, "end_sequence"),  # of the first sample, or the only one
        (Requests, "finished"),
    ],
)
def test_a_run_with_a_recovery_replays(tmp_path: Path, depth: int, owner: object, name: str) -> None:
    records = interrupted_run(replace(SETUP, depth=depth), tmp_path, owner, name)
    (recovery,) = of_kind(records, "recovery")
    outcome = replay(records, rebuilt_setup(records[0]).scheduler)[1]
    assert outcome.difference is None
    lost = [step for step in of_kind(records, "step") if step.lost]
    assert all(step.error == recovery.error for step in lost)
    assert lost or owner is InterimSteps
    numbers = [sample.sequence_id for one in of_kind(records, "request") for sample in one.samples]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("name", ["end_sequence", "finished"])
def test_an_abort_that_was_broken_off_replays_as_an_error(tmp_path: Path, name: str) -> None:
    recorded = Recorded(SETUP)
    for number in range(2):
        recorded.loop.add(request(f"r{number}", [1, 1, 0], output=9))
    recorded.loop.advance()
    ends: Callable[..., object] = getattr(Requests, name)

    def broken(*arguments: object) -> None:
        ends(*arguments)
        raise KeyboardInterrupt

    with mock.patch.object(Requests, name, broken), pytest.raises(KeyboardInterrupt):
        recorded.loop.abort("r1")
    records = recorded.records(tmp_path)
    assert replay(records, rebuilt_setup(records[0]).scheduler)[1].difference is None
    ended = of_kind(records, "request")
    assert [one.request.request_id for one in ended] == ["r0", "r1"]
    assert {one.samples[0].finish.reason for one in ended} == {"error"}


def test_a_first_token_of_a_step_that_was_broken_off_is_lost(tmp_path: Path) -> None:
    recorded = Recorded(SETUP)
    recorded.loop.add(request("a", [1, 1, 0], output=9))
    takes = Outputs.take_tokens

    def broken(*arguments: object) -> None:
        takes(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with mock.patch.object(Outputs, "take_tokens", broken), pytest.raises(KeyboardInterrupt):
        recorded.loop.advance()
    records = recorded.records(tmp_path)
    assert replay(records, rebuilt_setup(records[0]).scheduler)[1].difference is None


def test_steps_that_are_missing_without_a_recovery_are_reported(tmp_path: Path) -> None:
    records = interrupted_run(replace(SETUP, depth=2), tmp_path, InterimSteps, "begin")
    (recovery,) = of_kind(records, "recovery")
    numbers = [step.plan.step for step in of_kind(records, "step")]
    assert recovery.next_step in numbers and recovery.next_step - 1 not in numbers
    changed = [structs.replace(one, next_step=99) if one is recovery else one for one in records]
    with pytest.raises(RecordError, match="lines are missing"):
        replay(changed, rebuilt_setup(records[0]).scheduler)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("comes_before", [False, True])
@pytest.mark.parametrize("name", ["step", "events", "transferred", "recovered"])
@pytest.mark.parametrize("owner", [EngineObservers, Recorder])
def test_a_run_whose_observers_were_interrupted_replays(
    tmp_path: Path, owner: type[EngineObservers | Recorder], name: str, comes_before: bool, depth: int
) -> None:
    """Ctrl-C comes before an observer is notified, or after that; requests go on."""
    notified: Callable[..., None] = getattr(owner, name)
    calls = 0

    def broken(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if not comes_before or calls % 5:
            notified(*arguments)
        if calls % 5 == 0:
            raise KeyboardInterrupt

    with mock.patch.object(owner, name, broken):
        records = run_despite_interruptions(Recorded(replace(SCARCE, transfer_polls=(2, 5), depth=depth)), tmp_path)
        assert calls >= 5
    assert replay(records, rebuilt_setup(records[0]).scheduler)[1].difference is None
    recoveries = of_kind(records, "recovery")
    assert name == "recovered" or len(recoveries) == RECOVERIES
    for one in of_kind(records, "request"):
        (sample,) = one.samples
        if one.request.request_id.startswith("whole"):
            assert (sample.finish.reason, len(sample.token_ids)) == ("length", 6)


class Interrupted(Retained):
    """Ctrl-C comes as one line is written."""

    def __init__(self, at: int):
        super().__init__()
        self.left = at

    def write(self, line: object) -> int:
        written = super().write(line)  # type: ignore[arg-type]
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return written


def test_an_interruption_at_any_line_leaves_a_record_that_replays(tmp_path: Path) -> None:
    at = 1
    while True:
        recorded = Recorded(replace(SCARCE, transfer_polls=(2, 5)), file=Interrupted(at + 1))
        records = run_despite_interruptions(recorded, tmp_path, rounds=1)
        assert replay(records, rebuilt_setup(records[0]).scheduler)[1].difference is None, f"line {at}"
        if len(records) <= at:
            break
        at += 1
    assert at > 20


def run_despite_interruptions(recorded: Recorded, folder: Path, rounds: int = RECOVERIES) -> list[Line]:
    """Return the records of a run that goes on after each interruption, with requests that end, are aborted, or are
    broken off with the scheduler."""
    loop = recorded.loop

    def insistently(verb: Callable[[], object]) -> None:
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt):
                verb()
                return
        pytest.fail("It is interrupted again and again.")

    def add(name: str, prompt: list[int]) -> None:
        insistently(lambda: loop.add(request(name, prompt, output=6)))

    def run() -> None:
        while not loop.idle:
            insistently(loop.advance)

    for number in range(rounds):
        for name in ("whole", "other"):
            add(f"{name} {number}", [len(name) % 2, 1, number % 2, 0, 1])
        for _ in range(5):
            insistently(loop.advance)
        insistently(lambda: loop.sync_tenant_usage({"interactive": {"": 5.0}}))
        add(f"aborted {number}", [0, 1, 1])
        insistently(loop.advance)
        with contextlib.suppress(KeyboardInterrupt):
            loop.abort(f"aborted {number}")
        run()
        add(f"lost {number}", [1, 1, 0])
        insistently(loop.advance)
        broken = mock.patch.object(Scheduler, "abort", mock.Mock(side_effect=KeyboardInterrupt))
        with broken, pytest.raises(KeyboardInterrupt):
            loop.abort(f"lost {number}")
        insistently(loop.take_transferred)
        run()
    assert loop.observer_error is None
    return recorded.records(folder)
