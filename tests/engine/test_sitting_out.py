"""Draws that wait for their masks: the row sits out, and has the same tokens as one that never waited."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from core.builders import request
from core.harness import Setup
from core.test_state_machine import SETUPS, fitted, requests
from hypothesis import given
from msgspec import structs
from simulate.setups import pool

from inflight.config.assembly import scheduler_for
from inflight.config.scheduling import SchedulingSettings
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.executor import Done
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, Sampled, StepResult, Transferred
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder, open_record
from inflight.records.schema import of_kind, read_records
from inflight.simulate.replay import replay
from inflight.simulate.simulation import resolved_settings
from inflight.testing.null import NullExecutor

from .test_loop import outcome


class Waiting(NullExecutor):
    """Draws wait now and then, for some polls; what is drawn behind one that waits counts for nothing."""

    def __init__(self, *given: Any, chance: float, seed: int = 0, **named: Any) -> None:
        super().__init__(*given, **named)
        self.waited = 0
        self._chance, self._random = chance, random.Random(seed)
        self._known: dict[int, tuple[int, int]] = {}  # sequence → tokens before a draw that waits, and its transfer
        self._reported: set[int] = set()
        self._polls: dict[int, int] = {}  # transfer → polls that are in vain

    def submit(self, plan: BatchPlan) -> Done:
        result = super().submit(plan).result()
        chunks = {chunk.sequence_id: chunk for chunk in plan.chunks}
        sampled = tuple(self._drawn(chunks[one.sequence_id], one) for one in result.sampled)
        return Asked(structs.replace(result, sampled=sampled), self)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        others = super().poll(seconds)
        if others is None and not self._polls:
            return None
        ended = [transfer_id for transfer_id, polls in self._polls.items() if not polls]
        self._polls = {transfer_id: polls - 1 for transfer_id, polls in self._polls.items() if polls}
        return (*(others or ()), *map(Transferred, ended))

    def report(self, transfer_id: int) -> None:
        """The draw that waits is known."""
        if transfer_id not in self._reported:
            self._reported.add(transfer_id)
            self._polls[transfer_id] = self._random.randrange(3)

    def _write(self, row: Any, chunk: Chunk) -> None:
        if chunk.sample:  # what followed a draw that waited is gone
            del row.tokens[known_before(chunk) :]
        super()._write(row, chunk)

    def _drawn(self, chunk: Chunk, drawn: Sampled) -> Sampled:
        number, known = chunk.sequence_id, known_before(chunk)
        before, transfer_id = self._known.get(number, (known, 0))
        if transfer_id and known > before:
            return Sampled(number, (), waits_for=transfer_id)
        self._known.pop(number, None)
        if self._random.random() >= self._chance:
            return drawn
        self.waited += 1
        transfer_id = -self.waited
        self._known[number] = known, transfer_id
        return Sampled(number, (), waits_for=transfer_id)


class Asked(Done):
    """Transfers are polled when the result was asked for that has them."""

    def __init__(self, result: StepResult, executor: Waiting) -> None:
        super().__init__(result)
        self._executor = executor

    def result(self) -> StepResult:
        result = super().result()
        for one in result.sampled:
            if one.waits_for:
                self._executor.report(one.waits_for)
        return result


def known_before(chunk: Chunk) -> int:
    return chunk.start + chunk.length - len(chunk.draft_token_ids)


@given(
    setup=SETUPS,
    asked=st.lists(requests(max_prompt=8), min_size=1, max_size=5),
    chance=st.sampled_from([0.2, 0.6]),
    seed=st.integers(0, 99),
)
def test_tokens_do_not_depend_on_who_sat_out(setup: Setup, asked: list[Request], chance: float, seed: int) -> None:
    setup = replace(
        setup, tier=None, peers=False, adapter_slots=0, transfer_polls=(), host_is_tier=False, drafting="planned",
        num_blocks=max(setup.num_blocks, -(-24 // setup.block_size) * len(setup.windows)), max_model_len=24,
    )  # fmt: skip
    plain = {"adapter": None, "kv_transfer": None, "slo": SLO()}
    fit = [
        structs.replace(fitted(one, setup, request_id=f"r{at}", arrival=0.0), **plain) for at, one in enumerate(asked)
    ]
    outcomes = []
    for executor in (NullExecutor(setup.capacity), Waiting(setup.capacity, chance=chance, seed=seed)):
        loop = EngineLoop(setup.scheduler(), executor, VirtualClock(), depth=setup.depth)
        for one in fit:
            with contextlib.suppress(RequestRefused):  # its lane is full
                loop.add(one)
        outcomes.append(outcome(loop.run()))
    assert outcomes[1] == outcomes[0]


CAPACITY = Capacity(num_blocks=64, block_size=4, max_rows=4, max_model_len=60, vocab_size=100)


def loop_over(executor: Waiting, depth: int = 1, policy: Fcfs | None = None) -> EngineLoop:
    scheduler = Scheduler(SchedulerConfig(CAPACITY, Chunked(64), policy or Fcfs()))
    return EngineLoop(scheduler, executor, VirtualClock(), depth=depth)


@pytest.mark.parametrize("depth", [1, 2])
def test_others_draw_while_one_sits_out(depth: int) -> None:
    class OneWaits(Waiting):
        def _drawn(self, chunk: Chunk, drawn: Sampled) -> Sampled:
            return super()._drawn(chunk, drawn) if chunk.sequence_id == 0 else drawn

        def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
            return () if self._polls and seconds == 0.0 else super().poll(seconds)  # not while others compute

    loop = loop_over(OneWaits(CAPACITY, chance=1.0), depth)
    for name in "ab":
        loop.add(request(name, (1, 2, 3), None, max_tokens=20))
    events: list[Event] = []
    while not any(isinstance(event, FinishedEvent) for event in events):
        found = loop.advance()
        assert isinstance(found, list)
        events += found
    assert {event.request_id for event in events} == {"b"}
    loop.abort("a")
    assert loop.idle


def test_each_time_counts_as_a_token_of_its_tenant() -> None:
    class Counting(Fcfs):
        output_tokens = 0

        def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
            self.output_tokens += output_tokens

    policy, executor = Counting(), Waiting(CAPACITY, chance=0.5)
    loop = loop_over(executor, policy=policy)
    loop.add(request("a", (1, 2, 3), None, max_tokens=20))
    loop.run()
    assert executor.waited and policy.output_tokens == 20 + executor.waited


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("speculation", ["off", "suffix"])
def test_its_record_replays(tmp_path: Path, depth: int, speculation: str) -> None:
    of = pool(SchedulingSettings(speculation=speculation), num_blocks=30, depth=depth)
    executor = Waiting(of.capacity, chance=0.3)
    recorder = Recorder(open_record(tmp_path / "record.jsonl"), resolved_settings(of), of.capacity)
    scheduler = scheduler_for(of.capacity, of.settings, of.scheduling)
    loop = EngineLoop(scheduler, executor, VirtualClock(), depth=depth, observers=[recorder])
    for number in range(12):
        loop.add(request(f"r{number}", (1, 2, 3) * (1 + number), None, max_tokens=30, n=1 + number % 2))
    loop.run()
    loop.close()
    records = list(read_records(tmp_path / "record.jsonl"))
    assert executor.waited > 50 and any(step.waits for step in of_kind(records, "step"))
    _, outcome = replay(records)
    assert outcome.difference is None
