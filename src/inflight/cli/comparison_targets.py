"""Whom a comparison runs: engines of several settings in this process, servers that it starts, and servers that are up;
in turns, so that a machine whose speed drifts is fair to all whom it compares.

Knows how one run of each is made, and the order of the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import structs

from inflight.bench.run import Runner, Warmup, measured_part
from inflight.build import Engine, build_engine
from inflight.cli.started_server import started
from inflight.cli.variants import ServedVariant, Variant
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.metrics.observation import Observation
from inflight.metrics.summary import summarize
from inflight.report.reading import read_record
from inflight.report.run import Option, Run, Setting
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver, core_request
from inflight.workload.workload import Workload

Progress = Callable[[int], None]  # requests ended so far


class ComparisonTarget(Protocol):
    @property
    def name(self) -> str: ...

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        """One run, with nothing in memory from the ones before. load: the workload's name."""

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

        driver = Driver(engine.loop, workload, request, on_end=lambda index, observation: progress(next(done)))
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


@dataclass(slots=True)
class StartedTarget:
    """A server of its own for every run, as `inflight serve` starts it. served: its options. runner: of a server at
    this address; each run has one, so that all have the same prompts. show: called with lines about the start."""

    served: ServedVariant
    runner: Callable[[str], Runner]
    show: Callable[[str], None]
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.served.name

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        self.options = {"serve": Option(" ".join(self.served.words), "as given")}
        with started(self.name, self.served.words, self.show) as address:
            return ServerTarget(self.name, self.runner(address)).run(workload, load, progress)


def _warm(engine: Engine) -> None:
    """One short request that is not measured: memory is touched for the first time, threads are woken."""
    prompt = tuple(range(min(32, engine.capacity.vocab_size)))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    engine.loop.add(structs.replace(Request(request_id="warm", prompt_token_ids=prompt), params=params))
    engine.loop.run()


class Comparison:
    def __init__(
        self,
        targets: Sequence[ComparisonTarget],
        begins: Callable[[str], None],
        progress: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ):
        """Prepare a comparison. begins: called before each run. progress: called with the run, requests in all, and
        ended ones. stopped: whether it is to end."""
        self._targets = targets
        self._begins = begins
        self._progress = progress
        self._stopped = stopped
        self._runs: dict[str, list[Run]] = {one.name: [] for one in targets}

    def run(self, load: str, workload: Workload, repeats: int) -> None:
        """Repeats of one load, the targets in turn, beginning with another one each time. A round that is stopped
        is not kept, so that all have the same ones."""
        for repeat in range(repeats):
            turn = repeat % len(self._targets)
            taken: dict[str, Run] = {}
            for target in (*self._targets[turn:], *self._targets[:turn]):
                self._begins(f"{target.name}, {load}, round {repeat + 1} of {repeats}")
                progress = partial(self._progress, f"{target.name}, {load}", len(workload.entries))
                taken[target.name] = target.run(workload, load, progress)
                if self._stopped():
                    return
            for name, run in taken.items():
                self._runs[name].append(run)

    @property
    def settings(self) -> list[Setting]:
        return [Setting(one.name, tuple(self._runs[one.name]), one.options) for one in self._targets]

    def fastest(self) -> float:
        """Requests per second of the fastest run so far; 0 before the first."""
        rates = [run.summary.requests_per_s for runs in self._runs.values() for run in runs]
        return max(rates, default=0.0)
