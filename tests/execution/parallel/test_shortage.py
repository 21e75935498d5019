"""A rank that lacks memory in a step, with another step in flight: the step has failed on all, what follows it in
flight is discarded, and what is planned anew is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from inflight.core.types.events import Event, FinishedEvent
from inflight.execution.parallel.executor import ParallelExecutor
from inflight.execution.parallel.messages import Computed, FromWorker, RanksLost
from inflight.execution.parallel.workers import Workers
from inflight.execution.runner import ModelRunner

from ..backends.torch.opened import on_cpu
from ..backends.torch.test_engine import opened
from ..test_depth import requests, run
from .test_rank_transfers import Second

AT = 4  # the step


class Short(Second):
    """It lacks memory once, and draws nonsense in the step behind that; where `says` is False, without a word of it."""

    def __init__(self, runner: ModelRunner, says: bool = True) -> None:
        self._says, self._submitted = says, -1
        super().__init__(runner)

    def lacking(self) -> Exception | None:
        self._submitted += 1
        return MemoryError() if self._says and self._submitted == AT else None

    def _send(self, message: FromWorker) -> None:
        if isinstance(message, Computed) and message.step == AT + 1:
            message = Computed(message.step, tuple(token + 1 for token in message.token_ids), message.short)
        super()._send(message)


def served(folder: Path, says: bool) -> tuple[dict[str, FinishedEvent], dict[str, list[int]]]:
    """The ends, and what was said by those that came to theirs."""
    engine, other = (opened(folder, on_cpu(depth=2), num_blocks=40) for _ in range(2))
    first, second = engine.executor, other.executor
    assert isinstance(first, ModelRunner) and isinstance(second, ModelRunner)
    engine.loop._executor = ParallelExecutor(first, cast(Workers, Short(second, says)))
    events: list[Event] = []
    advance = engine.loop.advance

    def heard() -> object:
        found = advance()
        assert isinstance(found, list)
        events.extend(found)
        return found

    engine.loop.advance = heard  # type: ignore[method-assign, assignment]
    said = run(engine, requests(1))
    engine.loop.close()
    ends = {one.request_id: one for one in events if isinstance(one, FinishedEvent)}
    return ends, {name: tokens for name, (tokens, _) in said.items()}


def test_the_step_has_failed_on_all_and_they_go_on(tiny: Path) -> None:
    wanted = {name: tokens for name, (tokens, _) in run(opened(tiny, on_cpu()), requests(1)).items()}
    ends, said = served(tiny, says=True)
    failed = {name for name, one in ends.items() if one.finishes[0].reason == "error"}
    assert failed and len(failed) < len(ends) == 9
    for name in failed:
        assert str(ends[name].finishes[0].detail).startswith(f"On rank 1: Step {AT} with ")
    kept = {name for name in wanted if name.split("/")[0] not in failed}
    assert len(kept) > 3 and {name: said[name] for name in kept} == {name: wanted[name] for name in kept}


def test_nonsense_without_a_shortage_before_it_ends_the_engine(tiny: Path) -> None:
    with pytest.raises(RanksLost, match=f"Rank 1 has drawn other tokens than rank 0, .* in step {AT + 1}"):
        served(tiny, says=False)
