"""Run a comparison: engines with several settings in this process, servers that it starts, and servers that are up.

They run in turns, so that a machine whose speed drifts is fair to all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from inflight.bench.client_types import BenchError
from inflight.bench.run import Runner, Warmup, measured_part
from inflight.build import Engine, build_engine
from inflight.cli.summary import show
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
_READY = re.compile(rb"Ready at (http\S+)")
_START_SECONDS = 600.0  # a large model, Ray, and a busy machine
_END_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_REPORT_SECONDS = 10.0


class ComparisonTarget(Protocol):
    """An engine or a server of a comparison."""

    @property
    def name(self) -> str: ...

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        """Run a workload once, with nothing in memory from earlier runs. load: the workload's name."""

    @property
    def options(self) -> Mapping[str, Option]:
        """Return the settings in force, as far as they are known; all of them after the first run."""


@dataclass(slots=True)
class EngineTarget:
    """An engine of its own for every run.

    Attributes:
        records: Folder of the step records.
        prompt_seed: Of the prompts' contents, the same for all targets.
        stop: Whether a run is to end now.
    """

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
            # A short request that is not measured: memory is touched for the first time, threads are woken.
            prompt = tuple(range(min(32, engine.capacity.vocab_size)))
            params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
            engine.loop.add(Request(request_id="warm", prompt_token_ids=prompt, params=params))
            engine.loop.run()
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
    """A server of its own for every run, as `inflight serve` starts it.

    Attributes:
        served: Its options.
        runner: Makes the runner for a server at this address; each run has one, so that all have the same prompts.
    """

    served: ServedVariant
    runner: Callable[[str], Runner]
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.served.name

    def run(self, workload: Workload, load: str, progress: Progress) -> Run:
        self.options = {"serve": Option(" ".join(self.served.words), "as given")}
        with started(self.name, self.served.words) as address:
            return ServerTarget(self.name, self.runner(address)).run(workload, load, progress)


@contextlib.contextmanager
def started(name: str, options: Sequence[str]) -> Iterator[str]:
    """Start `inflight serve` with these options on a free port, and yield its address; it ends on leaving.

    Raises:
        BenchError: It does not start; with its last line.
    """
    with tempfile.TemporaryFile() as output:
        words = [sys.executable, "-m", "inflight.cli", "serve", *options, "--host", "127.0.0.1", "--port", "0"]
        # A session of its own: Ctrl-C is for this process, and all processes of the server end with it.
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True)
        try:
            yield _address(name, process, output.fileno())
        finally:
            _end(process)


def _address(name: str, process: subprocess.Popen[bytes], output: int) -> str:
    began = last = time.monotonic()
    while True:
        ended = process.poll() is not None  # before its output is read, so that none is missed
        text = os.pread(output, os.fstat(output).st_size, 0)
        if (found := _READY.search(text)) is not None:
            return found[1].decode()
        if ended:
            raise BenchError(f"The server of --serve {name!r} ended with {process.returncode}: {_last(text)}")
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            show(f"The server of --serve {name!r} has been starting for {now - began:.0f} s: {_last(text)}")
        if now - began > _START_SECONDS:
            raise BenchError(f"The server of --serve {name!r} was not ready in {_START_SECONDS:,.0f} s: {_last(text)}")
        time.sleep(_LOOK_SECONDS)


def _last(text: bytes) -> str:
    """Return the last line of a log, or the message in it."""
    lines = text.decode(errors="replace").strip().splitlines() or ["it has printed nothing."]
    with contextlib.suppress(ValueError):
        line = json.loads(lines[-1])
        if isinstance(line, dict) and isinstance(line.get("message"), str):
            return str(line["message"])
    return lines[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its remaining processes, itself if need be
    process.wait()


class Comparison:
    """Runs of several targets under the same loads."""

    def __init__(
        self,
        targets: Sequence[ComparisonTarget],
        begins: Callable[[str], None],
        progress: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ):
        """Prepare a comparison.

        Args:
            targets: They run in turns.
            begins: Called before each run.
            progress: Called with the run, all its requests, and those that have ended.
            stopped: Whether it is to end.
        """
        self._targets = targets
        self._begins = begins
        self._progress = progress
        self._stopped = stopped
        self._runs: dict[str, list[Run]] = {one.name: [] for one in targets}

    def run(self, load: str, workload: Workload, repeats: int) -> None:
        """Run rounds of one load, each round beginning with another target. A round that is stopped is dropped, so that
        all targets have the same rounds."""
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
        """Return requests per second of the fastest run so far; 0 before the first."""
        rates = [run.summary.requests_per_s for runs in self._runs.values() for run in runs]
        return max(rates, default=0.0)
