"""Somebody waits, from when a request is added until it has ended, unless its lane is a background lane."""

from __future__ import annotations

from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.null import NullExecutor
from inflight.engine.turns.foreground import ForegroundCount

CAPACITY = Capacity(num_blocks=12, block_size=2, max_rows=4, max_model_len=20, vocab_size=1000)


def asked(name: str, lane: str) -> Request:
    return Request(request_id=name, prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=3), lane=lane)


def test_foreground_requests_count_until_they_end() -> None:
    lanes = [
        LaneSettings(name="interactive", policy=Fcfs()),
        LaneSettings(name="batch", policy=Fcfs(), background=True),
    ]
    foreground = ForegroundCount({one.name for one in lanes if one.background})
    scheduler = Scheduler(CAPACITY, Chunked(16), lanes=lanes)
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY), VirtualClock(), observers=[foreground])
    loop.add(asked("behind", "batch"))
    assert not foreground.any
    loop.add(asked("first", "interactive"))
    loop.add(asked("second", "interactive"))
    assert foreground.any
    loop.abort("first")
    assert foreground.any
    loop.run()
    assert not foreground.any
    loop.add(asked("third", "interactive"))
    assert foreground.any
    loop.close()
    assert not foreground.any
