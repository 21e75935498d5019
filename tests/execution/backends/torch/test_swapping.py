"""Blocks that go to the host and back beside the steps: in order, and never read or written over too early.

Copies here come late (`delayed`): what is not waited for is seen by the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from breadth import first_of
from torch import Tensor

from inflight.build import Engine
from inflight.core.types.plan import BatchPlan, Transferred
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.recorder import Recorder, open_record
from inflight.execution.backends.protocol import KVShape
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.runner import ModelRunner
from inflight.records.schema import of_kind, read_records
from inflight.simulate.replay import replay

from ...test_depth import Said, run
from .delayed import DelayedStream
from .opened import on_device
from .test_engine import SCARCE, opened

SWAP: dict[str, Any] = {"preemption": "swap", "swap_space": 0.001}


class Failing(DelayedStream):
    """Once `begun`, every third copy of blocks cannot be begun."""

    begun = False
    asked = 0

    def follow_steps(self) -> None:
        super().follow_steps()
        self.asked += self.begun
        if self.begun and self.asked % 3 == 0:
            raise RuntimeError("the device says no")


class Watched:
    """Record an engine's transfers, and how many steps were submitted while transfers were out."""

    def __init__(self, engine: Engine) -> None:
        self.ended: list[Transferred] = []
        self.kinds: dict[int, str] = {}
        self.steps_beside = 0
        runner = engine.executor
        assert isinstance(runner, ModelRunner)
        self._submit: Callable[[BatchPlan], Any] = runner.submit
        self._poll: Callable[[float], tuple[Transferred, ...] | None] = runner.poll
        runner.submit = self.submit  # type: ignore[method-assign]
        runner.poll = self.poll  # type: ignore[method-assign]

    def submit(self, plan: BatchPlan) -> Any:
        self.steps_beside += bool(plan.chunks) and len(self.kinds) > len(self.ended)
        self.kinds |= {one.transfer_id: one.kind for one in plan.transfers}
        return self._submit(plan)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        ended = self._poll(seconds)
        self.ended += ended or ()
        return ended


def asked() -> list[Request]:
    """More than the blocks hold at once."""
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple((7 * number + 3 * at) % 380 for at in range(18 + 5 * number)),
            params=SamplingParams(temperature=0.8 * (number % 2), max_tokens=50, ignore_eos=True),
            seed=number,
        )
        for number in range(7)
    ]


@pytest.fixture(scope="module")
def wanted(tiny: Path) -> Said:
    return run(opened(tiny, ReferenceBackend("float32")), asked())


@pytest.mark.parametrize("patience", first_of([2, 5]))
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("shape", [{}, {"enable_prefix_caching": False}])
def test_the_tokens_of_the_definition(
    tiny: Path, wanted: Said, shape: dict[str, Any], depth: int, patience: int
) -> None:
    engine = opened(tiny, on_device(depth=depth, copies=DelayedStream(patience)), SWAP, **SCARCE, **shape)
    assert engine.executor.capacity.asynchronous_transfers
    watched = Watched(engine)
    assert run(engine, asked()) == wanted
    assert {one.transfer_id for one in watched.ended} == set(watched.kinds), "each is reported"
    assert set(watched.kinds.values()) == {"store", "load"} and watched.steps_beside > 5


def test_what_cannot_be_copied_is_computed_again(tiny: Path, wanted: Said) -> None:
    stream = Failing(2)
    engine = opened(tiny, on_device(depth=2, copies=stream), SWAP, **SCARCE)
    watched, stream.begun = Watched(engine), True
    assert run(engine, asked()) == wanted
    failed = [one for one in watched.ended if one.error is not None]
    assert 0 < len(failed) < len(watched.ended)
    assert {one.error for one in failed} == {"Blocks could not be copied (RuntimeError: the device says no)."}


def test_its_record_replays(tmp_path: Path, tiny: Path) -> None:
    """Whenever copies ended, on the engine's own clock: with steps, and while nothing could be computed."""
    engine = opened(tiny, on_device(depth=2, copies=DelayedStream(7)), SWAP, **SCARCE)
    settings = {name: asdict(one) for name, one in engine.settings.items()}
    engine.loop.add_observer(Recorder(open_record(tmp_path / "r.jsonl"), settings, engine.capacity))
    run(engine, asked())
    engine.loop.close()
    records = list(read_records(tmp_path / "r.jsonl"))
    assert sum(len(step.transferred) for step in of_kind(records, "step")) > 5
    assert replay(records)[1].difference is None


def test_without_swap_space_nothing_is_asynchronous(tiny: Path) -> None:
    engine = opened(tiny, on_device(copies=DelayedStream(1)))
    assert not engine.executor.capacity.asynchronous_transfers


def test_copies_follow_the_steps_and_hold_none_of_them_up() -> None:
    said: list[str] = []

    class RecordedStream(DelayedStream):
        def copy(self, target: Tensor, source: Tensor) -> None:
            super().copy(target, source)
            said.extend(self.calls[len(said) :])
            said.append("copy")

    stream = RecordedStream()
    backend = on_device(copies=stream)
    cache = backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 4, host_blocks=3)
    keys = cache.layer(0).keys
    for block in range(4):
        keys[block] = block + 1
    there, back = backend.copy_blocks(cache, [0, 1, 3], [4, 5, 6]), backend.copy_blocks(cache, [6, 4], [0, 1])
    assert there is not None and back is not None and backend.asynchronous_copies
    assert said[:2] == ["follow", "copy"] and "hold" not in stream.calls
    assert not there.query() and keys[:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    backend.wait()
    assert there.query() and back.query() and keys[:, 0, 0, 0].tolist() == [4, 1, 3, 4]
