"""How large a cluster the simulator bears: replicas, requests, minutes, and what comes out, with an interval."""

from __future__ import annotations

import resource
import statistics
import time

from benchmarks.comparison import steady, tell
from benchmarks.results import table
from benchmarks.routing.clusters import Engine, shape, traffic
from inflight.simulate.fitted import FittedModel
from inflight.simulate.simulation import simulate

GPU = Engine(FittedModel(0.008, (2e-5,), decode_context=1e-8, prefill_context=1e-9), 128, 2048, 320_000)
ASKED_MINUTES = 20
_RUNS = 5  # independent ones, whose figures make the interval
_PER_REPLICA = 1.6  # conversations a second


def report(replicas: int, requests: int) -> str:
    rows = []
    for router in ("round-robin", "prefix-aware"):
        p99s, kept, seconds = [], [], []
        for seed in range(_RUNS):
            began = time.monotonic()
            workload = traffic(shape("agents"), _PER_REPLICA * replicas, requests // _RUNS, seed)
            summary = steady(simulate(workload, GPU.setup(router, replicas, seed)).observations)
            seconds.append(time.monotonic() - began)
            assert summary.ttft is not None and summary.ttft.p99 is not None, "many were answered"
            p99s.append(summary.ttft.p99)
            kept.append(summary.attainment)
            tell(f"{router}, run {seed + 1} of {_RUNS}: {seconds[-1]:.0f} s, TTFT p99 {1e3 * p99s[-1]:.0f} ms")
        rows.append([f"`{router}`", _interval(p99s, 1e3, "ms"), _interval(kept, 100, "%"), f"{sum(seconds) / 60:.1f}"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    head = ("policy", "TTFT p99", "kept their targets", f"minutes for all runs (asked: {ASKED_MINUTES})")
    about = (
        f"{replicas} replicas, {requests:,} requests of agents in {_RUNS} independent runs; 95 % intervals over runs; "
        f"at most {peak:.1f} GiB of memory."
    )
    return f"{about}\n\n{table(head, rows)}"


def _interval(values: list[float], factor: float, unit: str) -> str:
    """Mean and half of a 95 % interval, by Student's t of four degrees of freedom."""
    half = 2.776 * statistics.stdev(values) / len(values) ** 0.5
    return f"{factor * statistics.fmean(values):.1f} ± {factor * half:.1f} {unit}"
