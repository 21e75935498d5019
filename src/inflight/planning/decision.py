"""Simulated against measured: whether the setting that the simulator chooses is among the best on the real engine.

Knows trials, measured runs and what a wrong choice costs; who runs a real engine is handed in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inflight.metrics.summary import Summary
from inflight.planning.engine_config import EngineConfig
from inflight.planning.search import badness
from inflight.planning.simulation import Trial

Run = Callable[[EngineConfig], Summary]


@dataclass(frozen=True, slots=True)
class EvaluatedConfig:
    """One setting and what it did. measured: its runs on the real engine, none where it was not run there."""

    config: EngineConfig
    trial: Trial
    measured: tuple[Summary, ...] = ()

    @property
    def score(self) -> tuple[float, float]:
        """Goodput in requests/s, of those sent in the window; then how far the worst SLO is from being broken
        (more is better)."""
        return self.trial.summary.attained_per_s, -badness(self.trial)

    @property
    def goodput(self) -> float:
        """Measured, in requests/s: the median of the runs."""
        return statistics.median(one.attained_per_s for one in self.measured)


@dataclass(frozen=True, slots=True)
class Decision:
    """Settings that were simulated and measured. chosen: the one that the simulator prefers."""

    chosen: EvaluatedConfig
    judged: Sequence[EvaluatedConfig]

    @property
    def best(self) -> EvaluatedConfig:
        """As measured; the simulator's choice where it is as good."""
        return max((self.chosen, *self.judged), key=lambda one: one.goodput)

    @property
    def loss(self) -> float:
        """Share of the best measured goodput that the simulator's choice does not have."""
        best = self.best.goodput
        return 1 - self.chosen.goodput / best if best > 0 else 0.0

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, between simulated and measured goodput: 1 where both order the settings alike. None where one of
        them tells no settings apart."""
        simulated = ranks([one.trial.summary.attained_per_s for one in self.judged])
        measured = ranks([one.goodput for one in self.judged])
        try:
            return statistics.correlation(simulated, measured)
        except statistics.StatisticsError:
            return None


def ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [statistics.fmean(place for place, other in enumerate(ordered, 1) if other == value) for value in values]


def take_turns(
    chosen: Sequence[EvaluatedConfig], run: Run, repeats: int, progress: Callable[[str], None] = lambda sentence: None
) -> list[EvaluatedConfig]:
    """Each setting on the real engine, `repeats` times in turns (A B A B), so that a machine whose speed drifts drifts
    for all of them."""
    measured: list[list[Summary]] = [[] for _ in chosen]
    for repeat in range(repeats):
        for one, runs in zip(chosen, measured, strict=True):
            progress(f"On the real engine, run {repeat + 1} of {repeats}: {one.config}")
            runs.append(run(one.config))
            progress(
                f"  goodput {runs[-1].attained_per_s:.3g}/s ({runs[-1].attainment:.0%}), simulated "
                f"{one.trial.summary.attained_per_s:.3g}/s"
            )
    return [replace(one, measured=tuple(runs)) for one, runs in zip(chosen, measured, strict=True)]


def describe(trial: Trial) -> str:
    """The figures that decide."""
    parts = [f"goodput {trial.summary.attained_per_s:.3g}/s ({trial.summary.attainment:.0%})"]
    parts += [f"{slo.name} {value * 1e3:,.0f} ms" for slo, value in trial.values.items() if math.isfinite(value)]
    return ", ".join(parts) + (", saturated" if trial.saturated else "")
