"""Whom a comparison runs: engines of several settings in this process, and servers.

Knows how one run of each is made; who is run when, `comparing` knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from inflight.bench.run import Runner, Warmup, measured_part
from inflight.build import Engine, build_engine
from inflight.cli.variants import Variant
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.metrics.observation import Observation
from inflight.metrics.summary import summarize
from inflight.report.reading import read_record
from inflight.report.run import Option, Run
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver, core_request
from inflight.workload.workload import Workload

Progress = Callable[[int], None]  # requests ended so far


class ComparisonTarget(Protocol):
    @property
    def name(self) -> str: ...

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        """One run, with nothing in memory from the ones before. load: the workload in words."""

    @property
    def options(self) -> Mapping[str, Option]:
        """Settings in force, as far as they are known; all after the first run."""


@dataclass(slots=True)
class EngineTarget:
    """An engine of its own for every run. records: folder for step records. prompt_seed: of the prompts' contents, the
    same for all, so that all compute the same. stop: whether a run is to end now."""

    variant: Variant
    records: Path
    warmup: Warmup
    prompt_seed: int
    stop: Callable[[], bool]
    options: dict[str, Option] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def name(self) -> str:
        return self.variant.name

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        record = self.records / f"{next(self._numbers)} {self.name.replace('/', '-')}.jsonl"
        engine = build_engine(self.variant.engine, self.variant.scheduling, record)
        self.options = {name: Option(entry.value, entry.reason) for name, entry in engine.settings.items()}
        try:
            _warm(engine)
            begin = engine.loop.clock.now()
            observations = self._drive(engine, workload, progress)
        finally:
            engine.loop.close()
        window, _ = measured_part(observations, self.warmup, begin)
        recorded = read_record(record).runs[0].engine
        return Run(observations, summarize(observations, window), window, load, recorded, workload.notes)

    def _drive(self, engine: Engine, workload: Workload, progress: Progress) -> list[Observation]:
        encode = None if engine.tokenizer is None else engine.tokenizer.encode
        contents = Contents(workload.entries, engine.capacity.vocab_size, seed=self.prompt_seed, encode=encode)
        prompts = [contents.prompt(index) for index in range(len(workload.entries))]
        done = itertools.count(1)

        def request(index: int, arrival: float) -> Request:
            return core_request(workload.entries[index], str(index), prompts[index], arrival)

        driver = Driver(engine.loop, workload, request, ended=lambda index, observation: progress(next(done)))
        return driver.run(self.stop)


@dataclass(slots=True)
class ServerTarget:
    """A server that is up already. The runner gives every run prompts of its own, since a server keeps its cache."""

    name: str
    runner: Runner
    options: dict[str, Option] = field(default_factory=dict)

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        self.runner.progress = lambda counts: progress(counts.completed + counts.rejected + counts.failed)
        found = self.runner.run(workload)
        notes = (*found.notes, *found.result.health.faults)
        return Run(found.observations, found.summary, found.window, load, notes=notes, valid=found.valid)


def _warm(engine: Engine) -> None:
    """One short request that is not measured: memory is touched for the first time, threads are woken."""
    prompt = tuple(range(min(32, engine.capacity.vocab_size)))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.loop.add(replace(Request(request_id="warm", prompt_token_ids=prompt), params=params))
    engine.loop.run()
