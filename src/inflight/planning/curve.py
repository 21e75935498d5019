"""Throughput against latency: one machine at rising rates, until its queue grows without end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.planning.demand import Demand, traffic_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.simulation import try_out
from inflight.planning.steady import length, rows_at

POINT_REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Point:
    """rate: offered, requests/s. requests_per_s, output_tokens_per_s: completed in the measured part. ttft, tpot, itl,
    e2e: (p50, p95, p99) in seconds; None where saturated, since they would measure the length of the run."""

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
    requests: int = POINT_REQUESTS,
    seed: int = 0,
) -> list[Point]:
    """Return a point for each rate (requests/s of one machine), from one run each in virtual time.

    The engine's own scheduler runs under `config`, step times come from `machine.model`. Latencies are those of
    `requests` requests; before and after them come as many others as it takes for the batch to be full all the while
    (`steady`), so that p99 rests on `requests`.

    Raises:
        SettingsError: where the settings do not go together.
        WorkloadError: for a rate that is not above 0.
    """
    points, traffic = [], traffic_of(demand)
    for rate in rates:
        residents = rows_at(machine.model, traffic, rate, config.max_num_seqs) if rate > 0 else 0.0
        run = length(residents, requests, math.inf)
        trial = try_out(machine, config, demand.workload(rate, run.requests, seed), measured=(run.begin, run.end))
        known = {} if trial.saturated else trial.percentiles
        latencies = (known.get(name) for name in ("ttft", "tpot", "itl", "e2e"))
        done = trial.summary
        points.append(Point(rate, done.requests_per_s, done.output_tokens_per_s, trial.saturated, *latencies))
    return points
