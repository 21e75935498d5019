"""Shadow replay: the busiest seconds of a record on the real engine, under the present and the proposed settings.

Beside both stands the simulation of the very same requests.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from inflight.metrics.confidence import Estimate, paired_ratio
from inflight.metrics.slo import Metric
from inflight.metrics.summary import Summary
from inflight.planning.decision import EngineRun
from inflight.planning.engine_config import EngineConfig
from inflight.planning.rendering import sentence
from inflight.planning.retuning import Retuning, SimulatedRecord
from inflight.planning.stages import Progress, quiet
from inflight.planning.tuning import BETTER
from inflight.workload.workload import Entry, Workload

Share = Literal["p50", "p95", "p99"]
WHOLE_RUN = (0.0, 1.0)
MIN_RUNS = 2  # of each of the settings, to decide by


@dataclass(frozen=True, slots=True)
class Replayed:
    """Settings on the same requests: simulated, and measured in several runs."""

    config: EngineConfig
    simulated: Summary
    measured: tuple[Summary, ...]

    @property
    def goodput(self) -> float:
        """Return the median of the measured requests/s that met their targets."""
        return statistics.median(one.attained_per_s for one in self.measured)

    def latency(self, metric: Metric, share: Share) -> float:
        """Return the median of a measured percentile in seconds; nan where a run has none."""
        return statistics.median(_percentile(one, metric, share) for one in self.measured)

    def simulated_latency(self, metric: Metric, share: Share) -> float:
        return _percentile(self.simulated, metric, share)


def _percentile(summary: Summary, metric: Metric, share: Share) -> float:
    value: float | None = getattr(getattr(summary, metric), share)
    return math.nan if value is None else value


@dataclass(frozen=True, slots=True)
class Shadow:
    """A shadow replay. requests: of the replayed seconds. proposed None: the present settings stay, and ran alone."""

    seconds: float
    requests: int
    present: Replayed
    proposed: Replayed | None

    @property
    def goodput_ratio(self) -> Estimate | None:
        """Return the proposed settings' goodput over that of the present ones, run by run."""
        if self.proposed is None:
            return None
        pairs = ([one.attained_per_s for one in each.measured] for each in (self.proposed, self.present))
        return paired_ratio(*pairs)


def shadow_replay(
    retuning: Retuning, run: EngineRun, seconds: float, repeats: int, progress: Progress = quiet
) -> Shadow:
    """Replay on the real engine, in turns (A B A B), so that a drift of the machine's speed affects both.

    Args:
        run: Runs settings on the real engine: the workload, and the shares of its time that are measured.
        seconds: Of arrivals, the busiest of the record.
        repeats: Runs of each of the settings.
        progress: Called with a sentence about each run.
    """
    record = SimulatedRecord(retuning.traffic, retuning.slos)
    workload, original = _busiest(record.workload, seconds), _busiest(retuning.traffic.original, seconds)
    configs = [retuning.present] + ([retuning.proposed] if retuning.changed else [])
    measured: list[list[Summary]] = [[] for _ in configs]
    for repeat in range(repeats):
        for config, runs in zip(configs, measured, strict=True):
            progress(f"Shadow replay, run {repeat + 1} of {repeats}: {config}")
            runs.append(run(config, original, WHOLE_RUN))
    found = [
        Replayed(config, record.summary(config, workload, WHOLE_RUN), tuple(runs))
        for config, runs in zip(configs, measured, strict=True)
    ]
    span = workload.entries[-1].arrival
    return Shadow(span, len(workload.entries), found[0], found[1] if len(found) > 1 else None)


def with_shadow(retuning: Retuning, shadow: Shadow) -> Retuning:
    """Return the retuning as the real engine decides it: by goodput, in every run. Where both settings have the same,
    the simulation's verdict stays."""
    if shadow.proposed is None:
        return retuning
    pairs = [
        (after.attained_per_s, before.attained_per_s)
        for after, before in zip(shadow.proposed.measured, shadow.present.measured, strict=True)
    ]
    if all(abs(after - before) <= BETTER * before for after, before in pairs):
        return retuning
    if len(pairs) >= MIN_RUNS and all(after > before for after, before in pairs):
        return replace(retuning, reason="", is_measured=True)
    return replace(retuning, reason=sentence("retune_shadow", pairs=pairs, needed=MIN_RUNS), is_measured=True)


def _busiest(workload: Workload, seconds: float) -> Workload:
    """Return the requests of the seconds in which most come."""
    entries = workload.entries
    best: Sequence[Entry] = ()
    first = 0
    for last, entry in enumerate(entries):
        while entry.arrival - entries[first].arrival > seconds:
            first += 1
        if last + 1 - first > len(best):
            best = entries[first : last + 1]
    begin = best[0].arrival
    return replace(workload, entries=tuple(one.moved(one.arrival - begin, None) for one in best))
