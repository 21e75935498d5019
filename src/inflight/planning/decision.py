"""Settings that were simulated, and those of them that were measured on the real engine, which decides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inflight.metrics.summary import Summary
from inflight.planning.engine_config import EngineConfig
from inflight.planning.rendering import milliseconds, per_second
from inflight.planning.search import badness
from inflight.planning.simulation import Trial
from inflight.planning.stages import Progress, quiet
from inflight.workload.workload import Workload

EngineRun = Callable[[EngineConfig, Workload, tuple[float, float]], Summary]  # the last: shares that are measured


@dataclass(frozen=True, slots=True)
class Check:
    """Runs on the real engine: of so many of the best settings, each `repeats` times. seconds: of arrivals in each, in
    which the batch fills and drains, too, so that as little as a third of them is measured; requests until
    conversations and shared prefixes are cached come beside them."""

    run: EngineRun
    seconds: float
    settings: int = 3
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class EvaluatedConfig:
    """Settings and their trial. measured: their runs on the real engine."""

    config: EngineConfig
    trial: Trial
    measured: tuple[Summary, ...] = ()

    @property
    def score(self) -> tuple[float, float]:
        """Return the goodput in requests/s, of those sent in the window; then how far the worst SLO is from being
        missed (more is better)."""
        return self.trial.summary.attained_per_s, -badness(self.trial)

    @property
    def goodput(self) -> float:
        """Return the measured requests/s: the median of the runs."""
        return statistics.median(one.attained_per_s for one in self.measured)


@dataclass(frozen=True, slots=True)
class Decision:
    """Settings that were simulated and measured. chosen: the simulator's choice."""

    chosen: EvaluatedConfig
    judged: Sequence[EvaluatedConfig]

    @property
    def best(self) -> EvaluatedConfig:
        """Return the best as measured; the simulator's choice where it is as good."""
        return max((self.chosen, *self.judged), key=lambda one: one.goodput)

    @property
    def loss(self) -> float:
        """Return the share of the best measured goodput that the simulator's choice misses."""
        best = self.best.goodput
        return 1 - self.chosen.goodput / best if best > 0 else 0.0

    @property
    def rank_correlation(self) -> float | None:
        """Return Spearman's correlation of simulated and measured goodput: 1 where both order the settings alike; None
        where one of them is the same for all."""
        simulated = ranks([one.trial.summary.attained_per_s for one in self.judged])
        measured = ranks([one.goodput for one in self.judged])
        try:
            return statistics.correlation(simulated, measured)
        except statistics.StatisticsError:
            return None


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1 on; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [statistics.fmean(rank for rank, other in enumerate(ordered, 1) if other == value) for value in values]


def take_turns(
    chosen: Sequence[EvaluatedConfig],
    run: Callable[[EngineConfig], Summary],
    repeats: int,
    progress: Progress = quiet,
) -> list[EvaluatedConfig]:
    """Run each of the settings on the real engine, `repeats` times in turns (A B A B), so that a drift of the machine's
    speed affects all of them."""
    measured: list[list[Summary]] = [[] for _ in chosen]
    for repeat in range(repeats):
        for one, runs in zip(chosen, measured, strict=True):
            progress(f"On the real engine, run {repeat + 1} of {repeats}: {one.config}")
            runs.append(run(one.config))
            progress(
                f"  goodput {per_second(runs[-1].attained_per_s)} ({runs[-1].attainment:.0%}), simulated "
                f"{per_second(one.trial.summary.attained_per_s)}"
            )
    return [replace(one, measured=tuple(runs)) for one, runs in zip(chosen, measured, strict=True)]


def describe(trial: Trial) -> str:
    """Return the figures that decide."""
    parts = [f"goodput {per_second(trial.summary.attained_per_s)} ({trial.summary.attainment:.0%})"]
    reached = ((slo, value) for slo, value in trial.values.items() if math.isfinite(value))
    parts += [f"{slo.name} {milliseconds(value, slo.limit)}" for slo, value in reached]
    return ", ".join(parts) + (", saturated" if trial.saturated else "")
