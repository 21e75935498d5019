"""A run whose scheduler was reset after an interruption is recorded whole, and replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from core.builders import request
from core.harness import LaneSetup, Setup
from msgspec import structs

from inflight.core.scheduling.interim import InterimSteps
from inflight.core.scheduling.outputs import Outputs
from inflight.core.scheduling.scheduler import Scheduler
from inflight.records.schema import Line, RecordError, of_kind
from inflight.simulate.replay import replay

from .test_recorder import Recorded, rebuilt_setup

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
        for _ in range(3):
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


def test_steps_that_are_missing_without_a_recovery_are_reported(tmp_path: Path) -> None:
    records = interrupted_run(replace(SETUP, depth=2), tmp_path, InterimSteps, "begin")
    (recovery,) = of_kind(records, "recovery")
    numbers = [step.plan.step for step in of_kind(records, "step")]
    assert recovery.next_step in numbers and recovery.next_step - 1 not in numbers
    changed = [structs.replace(one, next_step=99) if one is recovery else one for one in records]
    with pytest.raises(RecordError, match="lines are missing"):
        replay(changed, rebuilt_setup(records[0]).scheduler)
