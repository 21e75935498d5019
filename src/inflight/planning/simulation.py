"""Trials: a workload on one or several machines under a setting, in virtual time with the engine's own scheduler, or on
a real engine.

The one place where planning meets the simulator. Knows how a run is made and what is read off it; not what to try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from inflight.core.types.features import Features
from inflight.engine.loop import EngineLoop
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.slo import METRICS, Slo, percentile
from inflight.metrics.summary import Summary, Window, summarize
from inflight.planning.demand import with_targets
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.simulate.disagg import AFTER, DisaggMode, Link
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.roofline import Cost
from inflight.simulate.simulation import Pool, Simulation, SimulationSetup, simulate
from inflight.simulate.steps import StepModel
from inflight.simulate.transfers import Folder, TransferRate
from inflight.workload.contents import Contents
from inflight.workload.driving import Driver, core_request
from inflight.workload.workload import Workload

ROUTER = "least-loaded"
SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Pools:
    """Engines for prompts and engines for answers, in place of replicas that do both. prefill, decode: how many.
    config: of those for answers. link, disagg_mode: between the two."""

    prefill: int
    decode: int
    config: EngineConfig
    link: Link
    disagg_mode: DisaggMode = AFTER


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where each replica keeps keys and values beyond its device. host_gib: of its host's memory. folder: in which all
    keep them."""

    host_gib: float | None = None
    folder: Folder | None = None


def simulate_run(
    machine: Machine,
    config: EngineConfig,
    workload: Workload,
    model: StepModel,
    replicas: int = 1,
    drafts: SimulatedDrafts | None = None,
    router: str = ROUTER,
    pools: Pools | None = None,
    tiers: Tiers | None = None,
) -> Simulation:
    """What becomes of the workload's requests. Replicas are alike and share the model, whose answers must depend on
    nothing but what it is asked. drafts: how often those are right that the settings ask for. pools: in place of
    replicas; `config` is of those for prompts."""

    def pool(config: EngineConfig, replicas: int) -> Pool:
        made = Pool(
            machine.capacity(config.max_num_seqs, config.scheduling.preemption != "recompute"),
            config.engine_settings(machine.max_model_len, machine.device),
            config.scheduling,
            lambda number: model,
            replicas,
            router,
            drafts=drafts,
            depth=machine.depth,
        )
        return made if tiers is None else _with_tiers(made, machine, tiers)

    if pools is None:
        return simulate(workload, SimulationSetup(pool(config, replicas)))
    two = pool(config, pools.prefill), pool(pools.config, pools.decode)
    return simulate(workload, SimulationSetup(*two, pools.link, disagg_mode=pools.disagg_mode))


def _with_tiers(pool: Pool, machine: Machine, tiers: Tiers) -> Pool:
    if tiers.host_gib is None:
        return replace(pool, folder=tiers.folder)
    blocks = int(tiers.host_gib * 2**30 / machine.block_bytes)
    capacity = structs.replace(
        pool.capacity, host_blocks=pool.capacity.host_blocks + blocks, asynchronous_transfers=machine.on_gpu
    )
    settings = replace(pool.settings, kv_cache_host=tiers.host_gib)
    host = TransferRate(machine.copy_seconds) if machine.copy_seconds else None
    return replace(pool, capacity=capacity, settings=settings, host=host, folder=tiers.folder)


@dataclass(frozen=True, slots=True)
class Spent:
    """What steps were: rows of one, mean over their time; seconds of one; and by (class of work, what binds it) the
    share of their time, where the step model tells them apart."""

    rows: float
    step_seconds: float
    by_kind: Mapping[tuple[str, str], float]


class Meter:
    """A step model that keeps what it is asked. It has no clock: how far a run is, it tells by the prompt tokens that
    were computed, which come as requests do."""

    def __init__(self, model: StepModel):
        self.model = model
        self._costs: Callable[[Features], tuple[Cost, ...]] | None = getattr(model, "costs", None)
        self._prompts = 0.0  # tokens of prompts so far
        self._steps: list[tuple[float, int, float, tuple[Cost, ...]]] = []  # prompt tokens so far, rows, seconds

    @property
    def name(self) -> str:
        return self.model.name

    def seconds(self, features: Features) -> float:
        costs = () if self._costs is None else self._costs(features)
        seconds = sum(cost.seconds for cost in costs) if costs else self.model.seconds(features)
        self._prompts += features.tokens - features.samples
        self._steps.append((self._prompts, features.rows, seconds, costs))
        return seconds

    def extrapolates(self, features: Features) -> str | None:
        return self.model.extrapolates(features)

    def spent(self, begin: float, end: float) -> Spent:
        """In the steps between two shares of the run's prompt tokens; the steps after its last prompt, in which the
        batch empties, are in no share."""
        first, last = begin * self._prompts, end * self._prompts
        taken = [step for step in self._steps if first <= step[0] < last] or self._steps
        busy = max(1e-12, math.fsum(seconds for _, _, seconds, _ in taken))
        by_kind: dict[tuple[str, str], float] = {}
        for _, _, _, costs in taken:
            for cost in costs:
                key = (cost.kind, cost.bound)
                by_kind[key] = by_kind.get(key, 0.0) + cost.seconds / busy
        rows = math.fsum(rows * seconds for _, rows, seconds, _ in taken) / busy
        return Spent(rows, busy / max(1, len(taken)), by_kind)


@dataclass(frozen=True, slots=True)
class Drafted:
    """steps_share: of steps, those with drafts. tokens: that a sequence with drafts had of a step, mean."""

    steps_share: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. rate: requests/s that each replica was offered. summary: of the measured part. values: SLO → its
    percentile in seconds. percentiles: latency → p50, p95, p99 in seconds. spent: of the measured part's steps.
    outside: sentence → share of the steps that lie beyond what the step model rests on. Of the whole run, all replicas
    together: preemptions; busy_tokens_per_s: output tokens per second with a step under way; drafted: what speculation
    did, None without it; busy: share of the time to the last arrival that steps took, of each pool.
    """

    rate: float
    replicas: int
    summary: Summary
    values: Mapping[Slo, float]
    percentiles: Mapping[str, tuple[float, ...]]
    spent: Spent
    preemptions: int
    outside: Mapping[str, float]
    busy_tokens_per_s: float = 0.0
    drafted: Drafted | None = None
    busy: tuple[float, ...] = ()

    @property
    def cached(self) -> float:
        """Share of the prompts' tokens that was found cached."""
        return self.summary.cached_tokens / max(1, self.summary.prompt_tokens)

    @property
    def saturated(self) -> bool:
        """Waiting still grew when arrivals ended: percentiles would tell the length of the run."""
        return self.summary.saturated

    @property
    def rows(self) -> float:
        """Of a step on one replica, mean over the time of steps."""
        return self.spent.rows

    @property
    def unserved(self) -> int:
        return self.summary.offered - self.summary.requests

    @property
    def met(self) -> bool:
        if self.saturated or self.unserved:
            return False
        return all(math.isnan(value) or value <= slo.limit for slo, value in self.values.items())

    @property
    def broken(self) -> list[tuple[Slo, float]]:
        """SLOs that were not kept, with their percentiles, the worst first."""
        found = [(slo, value) for slo, value in self.values.items() if value > slo.limit]
        return sorted(found, key=lambda pair: -pair[1] / pair[0].limit)


def try_out(
    machine: Machine,
    config: EngineConfig,
    workload: Workload,
    slos: tuple[Slo, ...] = (),
    model: StepModel | None = None,
    replicas: int = 1,
    targets: Targets | None = None,
    measured: tuple[float, float] = (0.0, 1.0),
    drafts: SimulatedDrafts | None = None,
    router: str = ROUTER,
    pools: Pools | None = None,
    tiers: Tiers | None = None,
) -> Trial:
    """Run a workload and read it off. model: in place of the machine's own. targets: promised to each request, for
    goodput. measured: shares of the arrivals' span between which the run is read (`steady` says which). drafts: how
    often they are right."""
    meter = Meter(model or machine.model)
    offered = workload if targets is None else with_targets(workload, targets)
    run = simulate_run(machine, config, offered, meter, replicas, drafts, router, pools, tiers)
    summary, read = read_off(run.observations, measured)
    times = [entry.arrival for entry in workload.entries]
    span = max(times[-1] - times[0], 1e-9)
    return Trial(
        rate=(len(times) - 1) / span / replicas,
        replicas=replicas,
        summary=summary,
        values={slo: slo.value(read) for slo in slos},
        percentiles={name: tuple(percentile(read, name, share) for share in SHARES) for name in METRICS},
        spent=meter.spent(*measured),
        preemptions=run.preemptions,
        outside={sentence: steps / max(1, run.steps) for sentence, steps in run.extrapolated.items()},
        busy_tokens_per_s=sum(one.output_tokens for one in run.observations)
        / max(1e-12, math.fsum(one.busy for one in run.replicas)),
        drafted=None if drafts is None else _drafted(run),
        busy=_busy(run, span),
    )


def _busy(run: Simulation, span: float) -> tuple[float, ...]:
    """Steps behind the last arrival are few."""
    parts = run.replicas[: run.first], run.replicas[run.first :]
    return tuple(min(1.0, math.fsum(one.busy for one in part) / span / len(part)) for part in parts if part)


def _drafted(run: Simulation) -> Drafted:
    found = [one.last.speculation for one in run.replicas if one.last.speculation is not None]
    chunks = sum(number for stats in found for _, number in stats.chosen)
    accepted = sum(sum(stats.accepted) for stats in found)
    steps = sum(stats.steps for stats in found)
    return Drafted(steps / max(1, run.steps), 1 + accepted / max(1, chunks))


def read_off(observations: Sequence[Observation], measured: tuple[float, float]) -> tuple[Summary, list[Observation]]:
    """Of the requests that were to be sent between two shares of the arrivals' span: their summary, and they. Whether
    waiting grew without end, all of the span tells: a late part of it would seem to have waited long from the start.
    """
    times = [one.intended for one in observations]
    first, span = min(times), max(times) - min(times)
    window = Window(first + measured[0] * span, first + measured[1] * span)
    trend = summarize(observations, Window(first, first + span)).ttft_trend
    return (
        replace(summarize(observations, window), ttft_trend=trend),
        [one for one in observations if window.holds(one.intended)],
    )


def measure_on(loop: EngineLoop, vocab_size: int, workload: Workload, measured: tuple[float, float]) -> Summary:
    """A workload on a real engine, read as a trial in virtual time is; runs it to its end and closes the engine.
    measured: shares of the arrivals' span between which it is read."""
    contents = Contents(workload.entries, vocab_size, min_id=3, stand_in=True)
    try:
        observations = Driver(
            loop,
            workload,
            lambda index, arrival: core_request(workload.entries[index], str(index), contents.prompt(index), arrival),
        ).run()
    finally:
        loop.close()
    return read_off(observations, measured)[0]
