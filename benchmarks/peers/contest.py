"""Rounds through the engines of one precision: who is started, whose turn it is, which runs count.

Engines are loaded beside each other and take turns trial by trial (A B C A B C), because a shared machine's memory
bandwidth changes within minutes; an engine that is not asked sleeps (vLLM takes 1 % of one core then, the others
nothing that can be measured). A trial in which an engine may wait for memory counts where the bandwidth that was probed
before and after each one's run is alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from benchmarks.comparison import log_line
from benchmarks.peers.engines import Copy, Engine
from benchmarks.peers.process import EngineFailed, EngineProcess
from benchmarks.peers.stepping import Job
from benchmarks.peers.trials import (
    FIRST_TOKEN,
    KL,
    MIXED_TOKENS,
    PEAK,
    TOP_1,
    Sizes,
    Trial,
    arrivals,
    first_request,
    trials,
    warm_up,
)
from benchmarks.real_models.agreement import Agreement
from benchmarks.real_models.engines import EngineFailed as AnswersFailed

ALIKE = 0.15  # share of the highest bandwidth by which the lowest may be below it
_TRIES = 3  # of a trial, before a round goes on without it


@dataclass(frozen=True, slots=True)
class Figure:
    """One engine's figure in one round. bandwidth: bytes/s, mean of the probes around it; 0 where none was taken.

    counts: the bandwidth was alike for all who took part, or could not be what limits them.
    """

    precision: str
    round: int
    engine: str
    measure: str
    value: float
    bandwidth: float = 0.0
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """probe: the bandwidth right now, bytes/s. others: the share of the cores that is taken while no engine runs.
    alike: by which share of the highest bandwidth the lowest may be below it.

    settle: seconds until threads that spin after a run sleep.
    """

    probe: Callable[[], float]
    others: Callable[[], float]
    alike: float = ALIKE
    settle: float = 0.3

    def hold(self, bandwidths: Sequence[float]) -> bool:
        return min(bandwidths) >= (1 - self.alike) * max(bandwidths)


class Judge(Protocol):
    """Compare engines' answers with one model's in float32."""

    def agreement(self, engine: Engine, copy: Copy, precision: str) -> Agreement:
        """Raises AnswersFailed."""


@dataclass(slots=True)
class Contest:
    """Compare engines at one precision. jobs: what each engine is to load, by name; copies: how it holds its weights.

    judge: of a trained model's answers, asked once.
    figures, absent and unjudged (engine: why), versions (engine: its own words), loads (of each round): what came of
    it.
    """

    precision: str
    engines: Sequence[Engine]
    jobs: Mapping[str, Job]
    copies: Mapping[str, Copy]
    sizes: Sizes
    rules: Rules
    judge: Judge | None = None
    figures: list[Figure] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    unjudged: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    loads: dict[int, float] = field(default_factory=dict)

    def round(self, number: int) -> None:
        """Start all, measure all, end all."""
        for engine in self.engines:
            self._judge(number, engine)
        self.loads[number] = self.rules.others()
        with ExitStack() as stack:
            live: dict[str, EngineProcess] = {}
            for engine in self.engines:
                if engine.name not in self.absent:
                    log_line(f"{self.precision}, round {number + 1}: {engine.name} starts")
                    self._start(number, engine, live, stack)
            for trial in trials(self.sizes):
                self._measure(number, trial, live)
            capacity = self.capacity(number)
            if capacity is not None:
                self._measure(number, arrivals(self.sizes, capacity), live)
            for name, process in live.items():
                gib = process.peak_resident_bytes() / 2**30
                self.figures.append(Figure(self.precision, number, name, PEAK.title, gib))

    def _judge(self, number: int, engine: Engine) -> None:
        """How near its answers are, where that is not known yet. An engine that gives none has no such figure."""
        known = any(one.engine == engine.name and one.measure == KL.title for one in self.figures)
        if self.judge is None or known or engine.name in self.absent or engine.name in self.unjudged:
            return
        try:
            found = self.judge.agreement(engine, self.copies[engine.name], self.precision)
        except AnswersFailed as failure:
            self.unjudged[engine.name] = f"{failure}."
            log_line(self.unjudged[engine.name])
            return
        log_line(f"{self.precision}: {engine.name}: KL {found.kl_mean:.5f}, likeliest token {found.same_best:.1%}")
        for measure, value in ((KL, found.kl_mean), (TOP_1, 100 * found.same_best)):
            self.figures.append(Figure(self.precision, number, engine.name, measure.title, value))

    def _start(self, number: int, engine: Engine, live: dict[str, EngineProcess], stack: ExitStack) -> None:
        """Start an engine until its first token, and warm it up. An engine's very first start is not counted: modules
        are compiled in it, which installed programs have done."""
        try:
            if engine.name not in self.versions:
                with closing(self._process(engine)) as process:
                    said = process.ready()
                    process.send(first_request())
                self.versions[engine.name] = f"{said['version']} ({said['settings']})"
            process = stack.enter_context(closing(self._process(engine)))
            process.ready()
            seconds = process.send(first_request())[0].token_times[0] - process.started
            for works in warm_up(self.sizes):
                process.send(works)
        except EngineFailed as failure:
            self._leave_out(engine.name, failure)
            return
        self.figures.append(Figure(self.precision, number, engine.name, FIRST_TOKEN.title, seconds))
        live[engine.name] = process

    def _process(self, engine: Engine) -> EngineProcess:
        job = self.jobs[engine.name]
        _read(Path(job.model))
        return EngineProcess(engine.python, engine.module, engine.environment, job)

    def _measure(self, number: int, trial: Trial, live: dict[str, EngineProcess]) -> None:
        """Each engine once, again where the bandwidth mattered and was not alike; the last try is kept, as one that
        does not count."""
        for attempt in range(_TRIES):
            found: list[Figure] = []
            for name, process in list(live.items()):
                try:
                    found += self._run(number, trial, name, process)
                except EngineFailed as failure:
                    self._leave_out(name, failure)
                    del live[name]
            if not found:
                return
            counts = not trial.reads or self.rules.hold([figure.bandwidth for figure in found])
            if counts or attempt == _TRIES - 1:
                self.figures += found if counts else [replace(figure, counts=False) for figure in found]
                return
            log_line(f"{trial.title}: the bandwidth changed in between; once more")

    def _run(self, number: int, trial: Trial, name: str, process: EngineProcess) -> list[Figure]:
        time.sleep(self.rules.settle)
        before = self.rules.probe()
        observed = [process.send(works) for works in trial.works]
        time.sleep(self.rules.settle)
        bandwidth = (before + self.rules.probe()) / 2
        found = trial.figures(observed)
        words = ", ".join(f"{title}: {value:,.2f}" for title, value in found.items())
        log_line(f"{self.precision}, round {number + 1}: {name}: {words} ({bandwidth / 1e9:.0f} GB/s)")
        return [Figure(self.precision, number, name, title, value, bandwidth) for title, value in found.items()]

    def capacity(self, number: int) -> float | None:
        """The best peer's on the mix in this round, inflight's own where there is no peer."""
        reached = {
            one.engine: one.value for one in self.figures if one.measure == MIXED_TOKENS.title and one.round == number
        }
        peers = [value for name, value in reached.items() if name != "inflight"]
        return max(peers or reached.values(), default=None)

    def _leave_out(self, name: str, failure: EngineFailed) -> None:
        words = str(failure).removesuffix(".")
        self.absent[name] = f"{name} is left out of {self.precision}: {words}."
        log_line(self.absent[name])


def _read(place: Path) -> None:
    """Into the page cache, from which a start that is measured is to load."""
    for file in [place] if place.is_file() else place.glob("*.*"):
        with file.open("rb") as content:
            while content.read(2**24):
                pass
