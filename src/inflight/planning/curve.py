"""Throughput against latency: what one machine does at rising rates, until its queue grows without end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.planning.demand import Demand, sample
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.simulation import Trial, try_out
from inflight.planning.steady import length, rows_at
from inflight.planning.traffic import analyze_traffic

REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Point:
    """rate: offered, requests/s. requests_per_s, output_tokens_per_s: done in the measured part. ttft, tpot, itl, e2e:
    (p50, p95, p99) in seconds; None where the queue grew without end, since they would tell the length of the run."""

    rate: float
    requests_per_s: float
    output_tokens_per_s: float
    saturated: bool
    ttft: tuple[float, ...] | None
    tpot: tuple[float, ...] | None
    itl: tuple[float, ...] | None
    e2e: tuple[float, ...] | None


def throughput_latency_curve(
    machine: Machine,
    config: EngineConfig,
    demand: Demand,
    rates: Sequence[float],
    *,
    requests: int = REQUESTS,
    seed: int = 0,
) -> list[Point]:
    """One run in virtual time per rate (requests/s of one machine), the engine's own scheduler under `setting`, step
    times from `machine.model`. Latencies are those of `requests` requests; before and after them come as many others as
    it takes for the batch to be full all the while (`steady`), so that p99 rests on `requests`.

    Raises SettingsError where the settings do not go together, WorkloadError for a rate that is not above 0.
    """
    points, traffic = [], analyze_traffic(sample(demand))
    for rate in rates:
        residents = rows_at(machine.model, traffic, rate, config.max_num_seqs) if rate > 0 else 0.0
        run = length(residents, requests, math.inf)
        offered = demand.workload(rate, run.requests, seed)
        trial = try_out(machine, config, offered, measured=(run.begin, run.end))
        points.append(
            Point(
                rate=rate,
                requests_per_s=trial.summary.requests_per_s,
                output_tokens_per_s=trial.summary.output_tokens_per_s,
                saturated=trial.saturated,
                ttft=_shown(trial, "ttft"),
                tpot=_shown(trial, "tpot"),
                itl=_shown(trial, "itl"),
                e2e=_shown(trial, "e2e"),
            )
        )
    return points


def _shown(trial: Trial, name: str) -> tuple[float, ...] | None:
    return None if trial.saturated else trial.percentiles[name]
