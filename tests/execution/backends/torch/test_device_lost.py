"""A device that answers every call with the same error from some moment on, as CUDA does once memory could not be
corrected: the engine ends with a sentence, and no request waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from inflight.build import Engine
from inflight.core.types.events import FinishedEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.engine.event_stream import EngineStopped
from inflight.execution import ops
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.device_faults import DeviceLost

from .opened import on_device
from .test_engine import opened

ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"


class _Broken:
    """A launcher of a device that fails at its `left`th product, and whatever is asked of it from then on."""

    def __init__(self, launcher: Any, left: int) -> None:
        self._launcher, self.left = launcher, left

    def __getattr__(self, name: str) -> Any:
        self.check()
        return getattr(self._launcher, name)

    def check(self) -> None:
        if self.left <= 0:
            raise RuntimeError(ECC)

    def launch(self, operation: Any, *given: Any) -> None:
        self.left -= operation is ops.linear
        self.check()
        self._launcher.launch(operation, *given)


def broken(folder: Path, depth: int, left: int = 100) -> Engine:
    backend = on_device(depth=depth)
    engine = opened(folder, backend)
    device: Any = _Broken(backend._launcher, left)
    batch = engine.executor._batch  # type: ignore[attr-defined]
    discard = batch.discard

    def discarded(*given: Any) -> None:
        device.check()
        discard(*given)

    backend._launcher, backend.wait, batch.discard = device, device.check, discarded  # type: ignore[method-assign]
    return engine


def asked(number: int) -> Request:
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    return Request(request_id=str(number), prompt_token_ids=tuple(range(3, 20 + number)), params=params)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_engine_ends_with_a_sentence_and_so_do_all_requests(tiny: Path, depth: int) -> None:
    engine = broken(tiny, depth)
    for number in range(3):
        engine.loop.add(asked(number))
    with pytest.raises(DeviceLost, match=r"computes nothing any more \(RuntimeError: CUDA error: uncorrectable ECC"):
        engine.loop.run()
    ends = [one for event in engine.loop.run() if isinstance(event, FinishedEvent) for one in event.finishes]
    assert [one.reason for one in ends] == ["error"] * 3 and all("interrupted" in str(one.detail) for one in ends)
    engine.loop.add(asked(4))
    with pytest.raises(DeviceLost, match="start the engine again"):
        engine.loop.run()
    engine.loop.close()


def test_who_serves_stops_and_says_why(tiny: Path) -> None:
    async def served() -> AsyncBridge:
        bridge = AsyncBridge(broken(tiny, 2).loop)
        stream = await bridge.open(asked(1))
        with pytest.raises(EngineStopped, match="uncorrectable ECC"):
            async for _ in stream:
                pass
        with pytest.raises(EngineStopped, match="uncorrectable ECC"):
            await bridge.open(asked(2))
        return bridge

    bridge = asyncio.run(asyncio.wait_for(served(), 60))
    assert bridge.stopped is not None and "start the engine again" in bridge.stopped
    bridge.close()


def test_a_device_that_goes_on_is_not_lost(tiny: Path) -> None:
    """A step that failed alone: the device answers when it is asked."""
    backend: TorchBackend = on_device(depth=2)
    engine = opened(tiny, backend)
    assert backend.failure() is None
    device: Any = _Broken(backend._launcher, 50)
    backend._launcher = device
    engine.loop.add(asked(1))
    ends = [one for event in engine.loop.run() if isinstance(event, FinishedEvent) for one in event.finishes]
    assert [one.reason for one in ends] == ["error"] and "Step" in str(ends[0].detail)
    device.left = 1 << 30
    engine.loop.add(asked(2))
    ends = [one for event in engine.loop.run() if isinstance(event, FinishedEvent) for one in event.finishes]
    assert [one.reason for one in ends] == ["length"]
