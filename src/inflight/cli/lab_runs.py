"""Runs of a lab: contenders simulated on every draw of every workload, and the best on the real engine."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from inflight.bench.run import Warmup, measured_part
from inflight.cli.bench_options import LoadOptions, WorkloadOptions, offer_of, warmup_of
from inflight.cli.contenders import Contender
from inflight.cli.declared import options_of
from inflight.cli.drafts import DraftOptions
from inflight.cli.machines import DecodeOptions, MachineOptions, devices_of
from inflight.cli.progress import Interrupt, Progress, Remaining
from inflight.cli.simulate import notes_of, summary_of
from inflight.cli.simulated_engine import PoolOptions, SimulatedEngine, SizeOptions, TierOptions
from inflight.cli.summary import show
from inflight.cli.variants import Variant
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.options import OptionValues
from inflight.counted import counted
from inflight.planning.device import Device
from inflight.report.run import Option, Report, Run, Setting
from inflight.simulate.engine_costs import front_end_costs
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.workload.workload import Workload

REAL = "on the real engine"
SIMULATED = "simulated as on the real engine"


@dataclass(frozen=True, slots=True)
class Offered:
    """A workload by its options."""

    name: str
    asked: tuple[LoadOptions, WorkloadOptions]

    @property
    def has_targets(self) -> bool:
        return bool(self.asked[1].slo) or self.asked[1].classes is not None

    def draws(self, seeds: int, longest: int) -> tuple[str, list[Workload]]:
        """Return the name and the draws; without a name of its own, the description that all draws share."""
        found = self.workloads(seeds, longest)
        return self.name or found[0].name.partition("; seed ")[0], found

    def workloads(self, seeds: int, longest: int, seconds: float | None = None) -> list[Workload]:
        """Return a draw for each seed. longest: tokens of a request. seconds: that arrivals take at most. Raises
        click.UsageError where all draws would be the same."""
        load, asked = self.asked
        if asked.trace is not None and load.rate is None and load.arrivals is None:
            return list(self._stretches(seeds, longest, seconds))
        if seconds is not None:
            load = replace(load, duration=min(seconds, load.duration or math.inf))
        return [_fitted(replace(load, seed=load.seed + seed), asked, longest) for seed in range(seeds)]

    def _stretches(self, seeds: int, longest: int, seconds: float | None) -> Iterator[Workload]:
        load, asked = self.asked
        if seeds > 1 and asked.trace_seconds is None:
            raise click.UsageError(
                f"A trace with its own times is the same for all {seeds} seeds; give --trace-seconds, and each seed "
                "has a stretch of its own, or --rate, or --seeds 1."
            )
        for seed in range(seeds):
            length = asked.trace_seconds
            start = (asked.trace_start or 0.0) + seed * (length or 0.0)
            if seconds is not None:
                length = min(seconds, math.inf if length is None else length)
            yield _fitted(load, replace(asked, trace_start=start, trace_seconds=length), longest)


def _fitted(load: LoadOptions, asked: WorkloadOptions, longest: int) -> Workload:
    return replace(offer_of(load, asked), max_model_len=longest).workload()


@dataclass(frozen=True, slots=True)
class Bench:
    """The simulated engine, and the real one.

    Attributes:
        engine, device: Simulated.
        model: Settings of the real engine; None: only simulations are run.
        longest: Tokens of a request.
    """

    engine: SimulatedEngine
    device: Device
    warmup: Warmup
    seed: int
    content_seed: int
    model: EngineSettings | None
    longest: int

    def run(
        self, found: Sequence[Contender], made: Sequence[tuple[str, Sequence[Workload]]], interrupt: Interrupt
    ) -> Report:
        """Simulate all contenders on all workloads. A workload in which it is stopped has no runs."""
        pools = {one.name: self._pool(one) for one in found}
        count = len(found) * sum(len(seeds) for _, seeds in made)
        show(f"{counted(len(found), 'contender')}, {counted(len(made), 'workload')}: {count:,} simulations.")
        progress = Progress("lab", "simulations")
        runs: dict[str, list[Run]] = {one.name: [] for one in found}
        done = 0
        try:
            for name, seeds in made:
                taken: dict[str, list[Run]] = {one.name: [] for one in found}
                for workload, (contender, pool) in itertools.product(seeds, pools.items()):
                    if interrupt.wanted:
                        return _report(found, runs)
                    taken[contender].append(self._simulated(workload, pool, name))
                    done += 1
                    progress.update(done, count, contender)
                for contender, some in taken.items():
                    runs[contender] += some
        finally:
            progress.close()
        return _report(found, runs)

    def notes(self, one: Contender) -> list[str]:
        """Return what the simulations rest on, as sentences."""
        return notes_of(SimulationSetup(self._pool(one)), self.device, self.device)

    def _pool(self, one: Contender) -> Pool:
        return self.engine.pool(self.device, one.scheduling, OptionValues(), self.seed)

    def _simulated(self, workload: Workload, pool: Pool, load: str) -> Run:
        front_end = front_end_costs(self.device.engine)
        setup = SimulationSetup(pool, seed=self.seed, content_seed=self.content_seed, front_end=front_end)
        run = simulate(workload, setup)
        sent = [one for one in run.observations if one.sent is not None]
        window, _ = measured_part(sent, self.warmup)
        return Run(run.observations, summary_of(run, self.warmup)[0], window, load, notes=workload.notes)

    def measure(self, chosen: Sequence[Contender], workload: Workload, repeats: int, interrupt: Interrupt) -> Report:
        """Run contenders on the real engine, in turns. Its runs are those of the rounds that were complete."""
        from inflight.cli.comparison_targets import Comparison, EngineTarget

        with tempfile.TemporaryDirectory() as scratch:
            targets = [
                EngineTarget(
                    # Of the simulation: without drafts, where it does not know how often they are right.
                    Variant(one.name, one.options, self._settings(one), self._pool(one).scheduling),
                    Path(scratch),
                    self.warmup,
                    self.content_seed,
                    lambda: interrupt.wanted,
                )
                for one in chosen
            ]
            progress, remaining = Progress("lab", "requests"), Remaining(len(targets) * repeats, None, show)
            comparison = Comparison(
                targets,
                remaining.begin,
                lambda name, total, done: progress.update(done, total, name),
                lambda: interrupt.wanted,
            )
            try:
                comparison.run(REAL, workload, repeats)
            finally:
                progress.close()
        return Report("", [one for one in comparison.settings if one.runs])

    def _settings(self, one: Contender) -> EngineSettings:
        """Return the settings of the real engine, of the simulated one's size."""
        assert self.model is not None, "checked"
        pool = self._pool(one)
        return replace(
            pool.settings,
            model=self.model.model,
            family=self.model.family,
            load_format=self.model.load_format,
            device="cpu" if not self.device.on_gpu else pool.settings.device,
        )


def merged(report: Report, others: Sequence[Report]) -> Report:
    """Return the report with the runs of other reports on some of its settings."""
    runs = {one.name: list(one.runs) for one in report.settings}
    for other in others:
        for one in other.settings:
            runs[one.name] += one.runs
    return replace(report, settings=[replace(one, runs=runs[one.name]) for one in report.settings])


def _report(found: Sequence[Contender], runs: Mapping[str, Sequence[Run]]) -> Report:
    options = {one.name: {"options": Option(one.options)} for one in found}
    settings = [Setting(name, some, options[name]) for name, some in runs.items() if some]
    return Report("Lab: " + " · ".join(one.name for one in settings), settings)


def bench_of(machine: MachineOptions, is_verified: bool, values: dict[str, Any]) -> Bench:
    """Return the bench of a verb's options. is_verified: whether the real engine is run, too. Raises click.UsageError,
    SettingsError."""
    simulated = machine
    model = None
    if is_verified:
        model = EngineSettings(model=machine.model, family=machine.family, load_format=values["load_format"] or "auto")
        simulated = replace(machine, model=None, family=None)  # the real engine's
    decode = DecodeOptions()
    device = devices_of(simulated, decode, values["block_size"], values["max_num_seqs"])[0]
    size = options_of(SizeOptions, values)
    engine = SimulatedEngine(size, TierOptions(), DraftOptions(), PoolOptions(), noise=False)
    seed = values["seed"]
    content_seed = seed if values["prompt_seed"] is None else values["prompt_seed"]
    longest = engine.pool(device, SchedulingSettings(), OptionValues(), seed).capacity.max_model_len
    return Bench(engine, device, warmup_of(values["warmup"]), seed, content_seed, model, longest)
