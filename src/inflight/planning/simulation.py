"""Trials: a workload on one or several machines, in virtual time with the engine's own scheduler."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec import structs

from inflight.core.options import OptionValues
from inflight.metrics.latencies import Latencies
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.slo import METRICS, Slo, percentiles, shares_of
from inflight.metrics.summary import Summary, Window, summarize_with_latencies, ttft_trend
from inflight.models.sequence_memory import host_checkpoints
from inflight.planning.demand import with_targets
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.meter import Meter, Spent
from inflight.planning.programs import Span
from inflight.planning.queues import class_behind, grows
from inflight.planning.rendering import milliseconds
from inflight.planning.slos import undecided
from inflight.routing.registry import BLOCK, ROUTERS
from inflight.simulate.disagg import AFTER, DisaggMode, Link
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.engine_costs import front_end_costs
from inflight.simulate.simulation import Pool, Simulation, SimulationSetup, in_engine_steps, simulate
from inflight.simulate.steps import StepModel
from inflight.simulate.transfers import Folder, TransferRate
from inflight.workload.workload import Workload

ROUTER = "least-loaded"
SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Pools:
    """Prefill and decode engines, in place of replicas that do both. config: of decode engines. link, disagg_mode:
    between the two."""

    prefill: int
    decode: int
    config: EngineConfig
    link: Link
    disagg_mode: DisaggMode = AFTER


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where replicas store keys and values beyond the device. host_gib: of each host. folder: shared by all."""

    host_gib: float | None = None
    folder: Folder | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """Engines of a trial. replicas: alike, behind the router. pools: in place of replicas; the settings of the trial
    are those of prefill engines then. drafts: how often they are accepted that the settings ask for."""

    replicas: int = 1
    router: str = ROUTER
    pools: Pools | None = None
    tiers: Tiers | None = None
    drafts: SimulatedDrafts | None = None

    @property
    def engines(self) -> int:
        return self.replicas if self.pools is None else self.pools.prefill + self.pools.decode


ONE = Topology()


def simulate_run(
    machine: Machine, config: EngineConfig, workload: Workload, model: StepModel, topology: Topology = ONE
) -> Simulation:
    """Simulate a workload. All engines share the step model, whose answers must depend on its arguments alone."""
    pools, front_end = topology.pools, front_end_costs(machine.engine)

    def pool(config: EngineConfig, replicas: int) -> Pool:
        made = Pool(
            machine.capacity(config.max_num_seqs, config.scheduling.preemption != "recompute"),
            config.engine_settings(machine.max_model_len, machine.device),
            config.scheduling,
            lambda number: model,
            replicas,
            topology.router,
            router_options=_router_options(topology.router, machine.block_size),
            drafts=topology.drafts,
            depth=machine.depth,
        )
        return made if topology.tiers is None else _with_tiers(made, machine, topology.tiers)

    if pools is None:
        return simulate(workload, SimulationSetup(pool(config, topology.replicas), front_end=front_end))
    two = pool(config, pools.prefill), pool(pools.config, pools.decode)
    return simulate(workload, SimulationSetup(*two, pools.link, disagg_mode=pools.disagg_mode, front_end=front_end))


def _router_options(router: str, block_size: int) -> OptionValues:
    """Return the options of a router that remembers prompts in blocks as large as the engines'."""
    return OptionValues({BLOCK.name: block_size} if BLOCK in ROUTERS[router].options else {})


def _with_tiers(pool: Pool, machine: Machine, tiers: Tiers) -> Pool:
    if tiers.host_gib is None:
        return replace(pool, folder=tiers.folder)
    added = tiers.host_gib * 2**30 / machine.block_bytes
    of_states = 0 if machine.on_gpu else host_checkpoints(added, machine.state_blocks)  # as an engine does
    capacity = structs.replace(
        pool.capacity,
        host_blocks=pool.capacity.host_blocks + int(added - of_states * machine.state_blocks),
        state_snapshots=pool.capacity.state_snapshots + of_states,
        asynchronous_transfers=machine.on_gpu,
    )
    settings = replace(pool.settings, kv_cache_host=tiers.host_gib)
    host = TransferRate(machine.copy_seconds) if machine.copy_seconds else None
    return replace(pool, capacity=capacity, settings=settings, host=host, folder=tiers.folder)


class Drafted(NamedTuple):
    """steps_share: of steps, those with drafts. tokens: of a sequence with drafts in a step, mean."""

    steps_share: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. rate: requests/s of each engine, as its workload was drawn or, where turns wait for answers, as they
    came; of one that missed the SLOs the higher of both. replicas: engines in all. summary: of the measured part.
    values: SLO → its percentile in seconds. percentiles: latency → p50, p95, p99 in seconds. spent: of the measured
    part's steps. outside: sentence → share of the steps beyond what the step model was fitted on. Of the whole run, all
    engines together: preemptions; busy_tokens_per_s: output tokens per second of step time; drafted: None without
    speculation; busy: of each pool, the share of the time to the last arrival that steps took. offered_by: measured
    requests of each class, where there are several; behind: a class whose queue grows without end; "": none.
    by_class: as percentiles, of each class. peak_rows: most sequences of a step. queue_grows: without end, where
    requests are of one class. programs: that the SLOs on programs rest on.
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
    offered_by: Mapping[str, int] = field(default_factory=dict)
    behind: str = ""
    by_class: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    peak_rows: int = 0
    queue_grows: bool = False
    programs: Mapping[Slo, int] = field(default_factory=dict)

    @property
    def cached(self) -> float:
        """Return the share of the prompts' tokens that was found cached."""
        return self.summary.cached_tokens / max(1, self.summary.prompt_tokens)

    @property
    def saturated(self) -> bool:
        """Whether waiting grew with the run (see `queues`): percentiles would measure the length of the run. The
        summary's own property, whether latency rose by more than is typical, also holds where an empty engine fills."""
        return self.queue_grows or bool(self.behind)

    @property
    def unserved(self) -> int:
        return self.summary.offered - self.summary.requests

    @property
    def is_exhausted(self) -> bool:
        """Whether more came than is served: percentiles are those of the run's length, or of its quick requests."""
        return self.saturated or self.unserved > 0

    @property
    def met(self) -> bool:
        if self.is_exhausted:
            return False
        return all(math.isnan(value) or value <= slo.limit for slo, value in self.values.items())

    @property
    def undecided(self) -> tuple[Slo, ...]:
        """Return the SLOs that are met, by fewer requests than decide that."""
        return undecided(self.values, self.samples_of) if self.met else ()

    def samples_of(self, slo: Slo) -> int:
        """Return the requests, or programs, that an SLO's value rests on."""
        if slo.is_of_programs:
            return self.programs.get(slo, 0)
        return self.offered_by.get(slo.traffic, 0) if slo.traffic else self.summary.offered

    @property
    def missed(self) -> list[tuple[Slo, float]]:
        """Return the SLOs that were missed, with their percentiles, the worst first."""
        found = [(slo, value) for slo, value in self.values.items() if value > slo.limit]
        return sorted(found, key=lambda pair: -pair[1] / pair[0].limit)

    @property
    def shortfall(self) -> str:
        """Describe the worst miss. A percentile of a saturated run would measure the length of the run."""
        if self.behind:
            return f"the class {self.behind} is behind: its queue grows without end"
        if self.saturated:
            return "it is saturated, and the queue grows without end"
        if not self.missed:
            return "requests are refused" if self.unserved else "all SLOs are met"
        slo, value = self.missed[0]
        return f"{slo.name} is {milliseconds(value, slo.limit)}"


def try_out(
    machine: Machine,
    config: EngineConfig,
    workload: Workload,
    slos: tuple[Slo, ...] = (),
    model: StepModel | None = None,
    topology: Topology = ONE,
    *,
    targets: Targets | None = None,
    measured: tuple[float, float] = (0.0, 1.0),
) -> Trial:
    """Simulate a workload and measure it.

    Args:
        machine, config: Of each engine.
        workload: For all engines together.
        slos: Whose percentiles are measured.
        model: In place of the machine's own step model.
        topology: Engines, router, pools, tiers and drafts.
        targets: Of each request, for goodput.
        measured: Shares of the arrivals' span between which the run is measured (see `steady`).
    """
    settings = config.engine_settings(machine.max_model_len, machine.device)
    meter = Meter(in_engine_steps(model or machine.model, settings, config.scheduling))
    offered = workload if targets is None else with_targets(workload, targets)
    run = simulate_run(machine, config, offered, meter, topology)
    return trial_of(run, meter, slos, topology, measured, workload)


def trial_of(
    run: Simulation,
    meter: Meter,
    slos: tuple[Slo, ...],
    topology: Topology,
    measured: tuple[float, float],
    workload: Workload | None = None,
) -> Trial:
    """Measure a run. meter: the step model that it was simulated with. workload: that it ran, where later turns come
    after their conversation began; None: the times of requests are known. Others: as of `try_out`."""
    until = None if workload is None else workload.until
    observations = [one for one in run.observations if until is None or one.sent is not None]
    entries = () if workload is None else workload.entries
    times = [one.arrival for one in entries] or [one.intended for one in observations]
    span = until or max(max(times) - min(times), 1e-9)
    contexts_grow = any(entry.after is not None for entry in entries)
    summary, read, latencies = read_off(observations, measured, span, contexts_grow)
    judged = span * (1 - measured[0] if contexts_grow else 1.0)
    rate, steps_from = (len(times) - 1) / span, measured[0]
    if workload is not None and until is not None:
        # Open conversations send as their answers come, and are computed whole at the beginning.
        rate = len(read) / ((measured[1] - measured[0]) * span)
        begun = [one for one in entries if one.after is None][: workload.sessions]
        cold = sum(one.prompt_tokens for one in begun if one.arrival < measured[0] * span)
        steps_from = min(0.9, cold / max(1.0, meter.prompts))
    first = min(one.intended for one in observations)
    programs = {
        slo: Span(first + measured[0] * span, first + measured[1] * span, until) for slo in slos if slo.is_of_programs
    }
    jobs = {slo: of.times(run.observations, slo) for slo, of in programs.items()}
    busy_seconds = max(1e-12, math.fsum(one.busy for one in run.replicas))
    pools = (part for part in (run.replicas[: run.first], run.replicas[run.first :]) if part)
    return Trial(
        rate=rate / topology.engines,
        replicas=topology.engines,
        summary=summary,
        values={slo: slo.maximum(jobs[slo]) if slo.is_of_programs else slo.value(read) for slo in slos},
        percentiles=latencies.percentiles(SHARES, summary.offered - summary.requests) | _of_programs(jobs),
        spent=meter.spent(steps_from, measured[1]),
        preemptions=run.preemptions,
        outside={sentence: steps / max(1, run.steps) for sentence, steps in run.extrapolated.items()},
        busy_tokens_per_s=sum(one.output_tokens for one in run.observations) / busy_seconds,
        drafted=None if topology.drafts is None else _drafted(run),
        # Steps after the last arrival are few.
        busy=tuple(min(1.0, math.fsum(one.busy for one in part) / span / len(part)) for part in pools),
        offered_by=Counter(one.traffic for one in read if one.traffic),
        by_class=_by_class(read),
        behind=class_behind(observations, span),
        peak_rows=meter.peak_rows,
        programs={slo: len(times) for slo, times in jobs.items()},
        queue_grows=len({one.traffic for one in observations}) == 1 and grows(summary.ttft_trend, judged),
    )


def _of_programs(jobs: Mapping[Slo, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """Return percentiles of job completion times, of the SLO that measures the most; none without one."""
    most = max(jobs.values(), key=len, default=None)
    return {} if most is None else {"jct": shares_of(most, SHARES)}


def _drafted(run: Simulation) -> Drafted:
    found = [one.last.speculation for one in run.replicas if one.last.speculation is not None]
    chunks = sum(stats.chunks for stats in found)
    accepted = sum(sum(stats.accepted) for stats in found)
    steps = sum(stats.steps for stats in found)
    return Drafted(steps / max(1, run.steps), 1 + accepted / max(1, chunks))


def read_off(
    observations: Sequence[Observation],
    measured: tuple[float, float],
    span: float | None = None,
    contexts_grow: bool = False,
) -> tuple[Summary, list[Observation], Latencies]:
    """Return the summary of the requests whose intended send time lies between two shares of the arrivals' span, those
    requests, and their latencies. Whether waiting grew without end is judged over the whole span: a late part of it
    would seem to have waited long from the start.

    Args:
        observations: Of all requests.
        measured: The two shares.
        span: Seconds from the first to the last arrival, after which only turns of open conversations come; None: to
            the last send time.
        contexts_grow: Whether contexts grow before the measured part, and waiting with them.
    """
    times = [one.intended for one in observations]
    first = min(times)
    span = max(times) - first if span is None else span
    window = Window(first + measured[0] * span, first + measured[1] * span)
    trend = ttft_trend(observations, Window(window.start if contexts_grow else first, first + span))
    summary, latencies = summarize_with_latencies(observations, window)
    return replace(summary, ttft_trend=trend), [one for one in observations if window.holds(one.intended)], latencies


def _by_class(read: Sequence[Observation]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the percentiles of each class, where there are several."""
    classes = sorted({one.traffic for one in read})
    if len(classes) < 2:
        return {}
    parts = {name: [one for one in read if one.traffic == name] for name in classes}
    return {name: {metric: percentiles(part, metric, SHARES) for metric in METRICS} for name, part in parts.items()}


def percentile_spans(trials: Sequence[Trial]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return the least of each percentile of each latency in the trials that serve all, and the greatest: infinite
    where one does not serve all, whose percentiles are those of its length."""
    served = [one for one in trials if not one.is_exhausted]
    of = served or trials
    return {
        name: tuple(
            (min(values), max(values) if len(served) == len(trials) else math.inf)
            for values in zip(*(one.percentiles[name] for one in of), strict=True)
        )
        for name in trials[0].percentiles
    }
