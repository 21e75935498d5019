"""How large a cluster the simulator bears: replicas, requests, minutes, and what comes out, with an interval.

Runs are independent, each with a seed of its own, in as many processes as there are cores to use.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.comparison import log_line, steady
from benchmarks.results import table
from benchmarks.routing.clusters import Engine, shape, traffic
from inflight.simulate.fitted import FittedModel
from inflight.simulate.simulation import simulate

GPU = Engine(FittedModel(0.008, (2e-5,), decode_context=1e-8, prefill_context=1e-9), 128, 2048, 320_000)
ASKED_MINUTES = 20
ROUTERS = ("round-robin", "prefix-aware")
_PER_REPLICA = 1.6  # conversations a second
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # t of 95 %, by runs


@dataclass(frozen=True, slots=True)
class _Run:
    router: str
    replicas: int
    requests: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Ran:
    """p99: seconds to the first token. kept: share of requests that kept their targets. workload, simulated: processor
    seconds that each took. steps: of all replicas. peak: GiB of memory."""

    p99: float
    kept: float
    workload: float
    simulated: float
    steps: int
    peak: float


def report(replicas: int, requests: int, routers: Sequence[str], runs: int, processes: int) -> str:
    rows, peak = [], 0.0
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for router in routers:
            began = time.monotonic()
            ran = list(pool.map(_ran, [_Run(router, replicas, requests // runs, seed) for seed in range(runs)]))
            minutes = (time.monotonic() - began) / 60
            rows.append([f"`{router}`", *_cells(ran, requests), f"{minutes:.1f}"])
            peak = max(peak, *(one.peak for one in ran))
    head = ("policy", "TTFT p99", "kept their targets", "steps a request", "ms of a processor a request")
    about = (
        f"{replicas} replicas, {requests:,} requests of agents in {runs} independent runs, {processes} at a time; "
        f"means with 95 % intervals over runs; at most {peak:.1f} GiB of memory in a run."
    )
    return f"{about}\n\n{table((*head, f'minutes for all runs (asked: {ASKED_MINUTES})'), rows)}"


def _ran(run: _Run) -> _Ran:
    """In a process of its own."""
    began = time.process_time()
    workload = traffic(shape("agents"), _PER_REPLICA * run.replicas, run.requests, run.seed)
    gc.freeze()  # it stays until the end: collections skip it
    made = time.process_time()
    simulation = simulate(workload, GPU.setup(run.router, run.replicas, run.seed))
    ended = time.process_time()
    summary = steady(simulation.observations)
    assert summary.ttft is not None and summary.ttft.p99 is not None, "many were answered"
    log_line(
        f"{run.router}, seed {run.seed}: {ended - began:.0f} s of a processor, TTFT p99 {1e3 * summary.ttft.p99:.0f} ms"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return _Ran(summary.ttft.p99, summary.attainment, made - began, ended - made, simulation.steps, peak)


def _cells(ran: Sequence[_Ran], requests: int) -> list[str]:
    return [
        _interval([one.p99 for one in ran], 1e3, "ms"),
        _interval([one.kept for one in ran], 100, "%"),
        f"{sum(one.steps for one in ran) / requests:.1f}",
        f"{1e3 * sum(one.workload + one.simulated for one in ran) / requests:.2f}",
    ]


def _interval(values: list[float], factor: float, unit: str) -> str:
    """Mean and half of a 95 % interval, by Student's t."""
    mean = factor * statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.1f} {unit}"
    half = _STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.1f} ± {factor * half:.1f} {unit}"
