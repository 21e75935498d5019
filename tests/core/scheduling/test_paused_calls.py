"""Paused calls: programs wait at their calls, and never in the middle of an answer."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.program import Program
from inflight.core.queueing.lanes import Lane
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.paused_calls import PausedCalls
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import Sequence
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.testing.null import NullExecutor

from ..builders import request

CAPACITY = Capacity(40, 4, 4, 120, 16)
PROGRAMS, TURNS = 8, 8


class Costly(LatencyModel):
    """Tokens that are worth keeping."""

    @property
    def ready(self) -> bool:
        return True

    def seconds(self, features: Features) -> float:
        return 0.05 + 0.02 * features.tokens


def test_an_answer_that_was_preempted_is_not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    pause, paused = PausedCalls.pause, list[int]()

    def watched(self: PausedCalls, sequence: Sequence, lane: Lane) -> bool:
        if found := pause(self, sequence, lane):
            paused.append(len(sequence.output))
        return found

    monkeypatch.setattr(PausedCalls, "pause", watched)
    scheduler = run_agents(random.Random(1))
    assert scheduler.stats().preemptions > 2
    assert paused and not any(paused)


def run_agents(draw: random.Random) -> Scheduler:
    """Run programs whose contexts do not fit into memory together."""
    latency = Costly()
    config = SchedulerConfig(
        CAPACITY, Chunked(32), Program(), token_budget=32, latency=latency, session_eviction=True, watermark=0.0
    )
    scheduler, executor = Scheduler(config), NullExecutor(CAPACITY, lambda plan: latency.seconds(features(plan)))
    now, turns = 0.0, [0] * PROGRAMS
    due = [(draw.random() * 20, program, [program] * 10) for program in range(PROGRAMS)]
    sent: dict[str, tuple[int, list[int]]] = {}
    while due or not scheduler.idle:
        for at, program, prompt in [one for one in due if one[0] <= now]:
            due.remove((at, program, prompt))
            name = f"r{len(sent)}"
            sent[name] = program, prompt
            call = request(name, prompt, output=draw.randint(4, 30), arrival=now)
            scheduler.add(structs.replace(call, program=f"p{program}"), now)
        plan = scheduler.plan(now)
        if not isinstance(plan, BatchPlan):
            now = max(now, min(one[0] for one in due))
            continue
        result = executor.submit(plan).result()
        now += result.seconds
        for event in scheduler.commit(plan, result, now):
            if isinstance(event, FinishedEvent):
                program, prompt = sent[event.request_id]
                turns[program] += 1
                if turns[program] < TURNS:
                    longer = (prompt + [program + turns[program]] * 9)[:85]
                    due.append((now + draw.random() * 3, program, longer))
    return scheduler
