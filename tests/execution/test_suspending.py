"""Suspended steps: the bits are those of steps that are not, a record says what was suspended and replays alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.observers import EngineObserver
from inflight.engine.recorder import Recorder
from inflight.execution.backends import open_backend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder
from inflight.records.schema import read_records
from inflight.simulate.replay import replay

from .conftest import OracleOf
from .driver import BLOCK, backends

LAYERS = 3


class Plans(EngineObserver):
    def __init__(self) -> None:
        self.results: list[Any] = []
        self.plans: list[BatchPlan] = []

    def step(self, plan: BatchPlan, result: Any, planned: float, committed: float) -> None:
        self.plans.append(plan)
        self.results.append(result)


class Rig:
    """A loop over a model's runner."""

    def __init__(self, folder: Path, isa: str, suspends: bool, record: Path | None = None):
        config = read_folder(folder, to_run=True)
        backend = open_backend("float32", 2, isa)
        self.capacity = Capacity(64, BLOCK, 8, 150, config.vocab_size)
        weights = load_weights(config, Checkpoint(folder), backend, self.capacity.max_model_len)
        cache = backend.kv_cache(kv_shape(config, BLOCK), self.capacity.num_blocks + 1)
        self.runner = ModelRunner(Model(config, weights, backend, 48, 8), backend, cache, self.capacity)
        self.seen = Plans()
        observers: list[EngineObserver] = [self.seen]
        if record is not None:
            observers.append(Recorder(record.open("wb"), {"depth": {"value": 1, "reason": ""}}, self.capacity))
        suspender = self.runner.suspending if suspends else None
        assert not suspends or suspender is not None
        self.loop = EngineLoop(self.scheduler(suspends), self.runner, MonotonicClock(), observers=observers,
                               suspender=suspender)  # fmt: skip
        self.tokens: dict[str, list[Any]] = {}

    def scheduler(self, suspends: bool) -> Scheduler:
        return Scheduler(
            SchedulerConfig(self.capacity, Chunked(48), Fcfs(), prefill_suspension=float(suspends), min_suspended=8)
        )

    def serve(self, requests: list[tuple[int, Request]]) -> dict[str, list[Any]]:
        """Serve requests, each added after so many rounds. Every step that may be is suspended at every layer."""
        rounds, waiting = 0, list(requests)
        while waiting or not self.loop.idle:
            while waiting and (waiting[0][0] <= rounds or self.loop.idle):
                self.loop.add(waiting.pop(0)[1])
            for event in self.loop.advance(until=0.0):  # type: ignore[union-attr]
                if isinstance(event, TokensEvent):
                    drawn = zip(event.token_ids, event.logprobs or (), strict=True)
                    self.tokens.setdefault(event.request_id, []).extend(drawn)
                else:
                    assert isinstance(event, FinishedEvent)
                    assert all(finish.reason == "length" for finish in event.finishes), event.finishes
            rounds += 1
        self.loop.close()
        return self.tokens


def requests(vocab_size: int) -> list[tuple[int, Request]]:
    def one(name: str, prompt: int, output: int) -> Request:
        number = sum(map(ord, name))
        params = SamplingParams(temperature=1.0, max_tokens=output, ignore_eos=True, logprobs=2)
        tokens = tuple(3 + (number * 31 + index * 7) % (vocab_size - 3) for index in range(prompt))
        return Request(request_id=name, prompt_token_ids=tokens, params=params, seed=number)

    return [
        (0, one("stream", 6, 20)),
        (2, one("long", 140, 6)),
        (3, one("short", 9, 4)),
        (5, one("tiny", 1, 3)),
        (5, one("medium", 40, 5)),
        (7, one("last", 11, 4)),
    ]


@pytest.mark.parametrize(
    ("variant", "isa"),
    [("llama2", isa) for isa in backends()] + [(name, backends()[-1]) for name in ("qwen2_some_windows", "qwen3_moe")],
)
def test_suspended_steps_yield_the_same_bits_and_replay_alike(
    oracle_of: OracleOf, tmp_path: Path, variant: str, isa: str
) -> None:
    folder = oracle_of(variant).folder
    path = tmp_path / "record.jsonl"
    plain, rig = Rig(folder, isa, suspends=False), Rig(folder, isa, suspends=True, record=path)
    asked = requests(rig.capacity.vocab_size)
    expected, found = plain.serve(asked), rig.serve(asked)
    assert found == expected  # tokens and log-probabilities, to the bit
    interim = [plan for plan in rig.seen.plans if plan.within is not None]
    suspended = [one for one in rig.seen.results if one.suspended_at]
    assert len(interim) >= 2 and suspended and not any(plan.within is not None for plan in plain.seen.plans)
    assert all(one.suspended_at[0] == 2 for one in suspended)
    again, outcome = replay(list(read_records(path)), lambda stops, drafts: rig.scheduler(True))
    assert outcome.difference is None and outcome.steps == len(rig.seen.plans)
    assert again.ends


def test_a_suspended_step_is_computed_to_its_end_when_its_result_is_asked_for(oracle_of: OracleOf) -> None:
    rig = Rig(oracle_of("llama2").folder, backends()[-1], suspends=True)
    rig.loop.add(requests(rig.capacity.vocab_size)[1][1])
    assert rig.loop.advance(until=0.0) == []
    suspender = rig.runner.suspending
    assert suspender is not None and suspender.suspension is not None and suspender.suspension.layers == 2
    rig.loop.abort("long")
    rig.loop.close()
    assert suspender.suspension is None and rig.loop.idle
    assert rig.loop.stats().kv.held_blocks == 0


def test_after_an_interruption_in_an_interim_step_the_engine_works(
    oracle_of: OracleOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(oracle_of("llama2").folder, backends()[-1], suspends=True)
    (_, stream), (_, long), (_, short), *_ = requests(rig.capacity.vocab_size)
    rig.loop.add(long)
    assert rig.loop.advance(until=0.0) == []
    rig.loop.add(short)

    def interrupt(plan: BatchPlan) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(rig.runner, "submit", interrupt)
        rig.loop.advance()
    while not rig.loop.idle:
        rig.loop.advance()
    assert rig.loop.stats().kv.held_blocks == 0
    plain = Rig(oracle_of("llama2").folder, backends()[-1], suspends=False)
    assert rig.serve([(0, stream)]) == plain.serve([(0, stream)])


def test_after_an_interruption_of_the_rest_of_a_suspended_step_no_half_computed_token_is_used(
    oracle_of: OracleOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(oracle_of("llama2").folder, backends()[-1], suspends=True)
    _, (_, long), *_ = requests(rig.capacity.vocab_size)
    spans, interrupts = Model.spans, [True]

    def interrupted(self: Model, batch: Any) -> Iterator[int]:
        for layers in spans(self, batch):
            yield layers
            if interrupts:
                interrupts.clear()
                raise KeyboardInterrupt

    monkeypatch.setattr(Model, "spans", interrupted)
    rig.loop.add(long)
    assert rig.loop.advance(until=0.0) == []
    with pytest.raises(KeyboardInterrupt):
        rig.loop.advance()
    events = rig.loop.run()
    finishes = [one for event in events if isinstance(event, FinishedEvent) for one in event.finishes]
    assert [one.reason for one in finishes] == ["error"], finishes
    assert rig.loop.stats().kv.held_blocks == 0
    plain = Rig(oracle_of("llama2").folder, backends()[-1], suspends=False)
    assert rig.serve([(0, long)]) == plain.serve([(0, long)])
