"""Trials: a workload on one or several machines under a setting, in virtual time, with the engine's own scheduler.

The one place where planning meets the simulator. Knows how a run is made and what is read off it; not what to try.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight.core.features import Features
from inflight.metrics.observation import Targets
from inflight.metrics.summary import Summary, Window, summarize
from inflight.planning.demand import with_targets
from inflight.planning.machine import Machine
from inflight.planning.setting import Setting
from inflight.planning.slo import METRICS, Slo, percentile
from inflight.simulate.latency import StepModel
from inflight.simulate.simulation import Pool, Setup, Simulation, simulate
from inflight.workload.workload import Workload

ROUTER = "least-loaded"
WARM_UP = 0.15  # share of the arrivals' span that is not measured: the batch is still filling
SHARES = (0.5, 0.95, 0.99)


def simulate_run(
    machine: Machine, setting: Setting, workload: Workload, model: StepModel, replicas: int = 1
) -> Simulation:
    """What becomes of the workload's requests. Replicas are alike and share the model, whose answers must depend on
    nothing but what it is asked."""
    pool = Pool(
        machine.capacity(setting.max_num_seqs, setting.scheduling.preemption != "recompute"),
        setting.engine_settings(machine.max_model_len),
        setting.scheduling,
        lambda number: model,
        replicas,
        ROUTER,
    )
    return simulate(workload, Setup(pool))


@dataclass(slots=True)
class Meter:
    """A step model that adds up what it is asked: steps, their seconds and rows, and seconds by class of work where
    the model tells them apart. by_kind: (class, what binds it) → seconds."""

    model: StepModel
    steps: int = 0
    busy: float = 0.0
    row_seconds: float = 0.0
    by_kind: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.model.name

    def seconds(self, held: Features) -> float:
        costs = getattr(self.model, "costs", None)
        if costs is None:
            seconds = self.model.seconds(held)
        else:
            seconds = 0.0
            for cost in costs(held):
                seconds += cost.seconds
                key = (cost.kind, cost.bound)
                self.by_kind[key] = self.by_kind.get(key, 0.0) + cost.seconds
        self.steps += 1
        self.busy += seconds
        self.row_seconds += held.rows * seconds
        return seconds

    def extrapolates(self, held: Features) -> str | None:
        return self.model.extrapolates(held)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. rate: requests/s that each replica was offered. summary: of the measured part. values: SLO → its
    percentile in seconds. percentiles: latency → p50, p95, p99 in seconds. rows: of a step, mean over the time of
    steps. by_kind: (class of work, what binds it) → share of that time. outside: sentence → share of the steps that
    lie beyond what the step model rests on. preemptions: of the whole run, all replicas together.
    """

    rate: float
    replicas: int
    summary: Summary
    values: Mapping[Slo, float]
    percentiles: Mapping[str, tuple[float, ...]]
    rows: float
    step_seconds: float
    preemptions: int
    by_kind: Mapping[tuple[str, str], float]
    outside: Mapping[str, float]

    @property
    def saturated(self) -> bool:
        """Waiting still grew when arrivals ended: percentiles would tell the length of the run."""
        return self.summary.saturated

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
    setting: Setting,
    workload: Workload,
    slos: tuple[Slo, ...] = (),
    model: StepModel | None = None,
    replicas: int = 1,
    targets: Targets | None = None,
) -> Trial:
    """Run a workload and read it off. model: in place of the machine's own. targets: promised to each request, for
    goodput."""
    meter = Meter(model or machine.model)
    offered = workload if targets is None else with_targets(workload, targets)
    run = simulate_run(machine, setting, offered, meter, replicas)
    times = [entry.arrival for entry in workload.entries]
    span = max(times[-1] - times[0], 1e-9)
    window = Window(times[0] + WARM_UP * span, times[-1])
    measured = [one for one in run.observations if window.holds(one.intended)]
    return Trial(
        rate=(len(times) - 1) / span / replicas,
        replicas=replicas,
        summary=summarize(run.observations, window),
        values={slo: slo.value(measured) for slo in slos},
        percentiles={name: tuple(percentile(measured, name, share) for share in SHARES) for name in METRICS},
        rows=meter.row_seconds / max(meter.busy, 1e-12),
        step_seconds=meter.busy / max(1, meter.steps),
        preemptions=run.preemptions,
        by_kind={key: seconds / max(meter.busy, 1e-12) for key, seconds in meter.by_kind.items()},
        outside={sentence: steps / max(1, run.steps) for sentence, steps in run.extrapolated.items()},
    )
