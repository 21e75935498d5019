"""Policies under overload: goodput at 1.2 times of measured capacity, ten minutes of virtual time.

Two classes of traffic, half of the requests each: a first token within 2 s, and within 5 s; no gap between tokens above
0.5 s. Lengths have heavy tails. Capacity is what the engine serves of this very mix when all of it waits from the
start. Every policy sees the same requests, once without admission control and once with `slo`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import takewhile

from benchmarks.drive import Outcome, Run, drive
from benchmarks.results import table, write_section
from benchmarks.virtual import VOCABULARY, virtual_engine
from benchmarks.workloads import heavy_tailed
from inflight.core.request import SLO, Request
from inflight.metrics.definitions import percentiles
from inflight.scheduling import SchedulingSettings

TARGETS = (2.0, 5.0)  # seconds to the first token, of the classes in turn
WORST_GAP = 0.5  # seconds
WAYS = (("fcfs", None), ("sjf", None), ("sjf", "oracle"), ("deadline", None))


@dataclass(frozen=True, slots=True)
class Found:
    offered: int
    met: int
    refused: int
    seconds: float
    run: Run

    @property
    def goodput(self) -> float:
        """Requests per second of the offered window that met their targets."""
        return self.met / self.seconds

    @property
    def attainment(self) -> float:
        return self.met / self.offered


def traffic(rate: float, seconds: float, seed: int) -> list[Request]:
    """Poisson arrivals."""
    offered = heavy_tailed(int(rate * seconds * 1.2) + 50, VOCABULARY, seed, rate, max_tokens=1024)
    return [
        replace(one, slo=SLO(ttft=TARGETS[index % len(TARGETS)], itl=WORST_GAP))
        for index, one in enumerate(takewhile(lambda one: one.arrival < seconds, offered))
    ]


def capacity(seed: int) -> float:
    """Requests per second while requests wait."""
    loop = virtual_engine(SchedulingSettings())
    run = drive(loop, heavy_tailed(1000, VOCABULARY, seed, max_tokens=1024))
    # Without the end, when rows stand empty: from the first token to the last first token.
    firsts = sorted(one.token_times[0] for one in run.outcomes)
    return (len(firsts) - 1) / (firsts[-1] - firsts[0])


def serve(policy: str, predictor: str | None, admission: str, requests: list[Request], seconds: float) -> Found:
    settings = SchedulingSettings(policy=policy, predictor=predictor, admission=admission)
    run = drive(virtual_engine(settings), requests)
    return Found(len(requests), sum(met(one) for one in run.outcomes), refused(run), seconds, run)


def met(one: Outcome) -> bool:
    assert one.request.slo.ttft is not None
    return one.met(one.request.slo.ttft, one.request.slo.itl)


def refused(run: Run) -> int:
    return sum(one.refused is not None for one in run.outcomes)


def report(seconds: float, seeds: range) -> str:
    parts = []
    for admission in ("off", "slo"):
        rows: list[list[object]] = []
        goodput: dict[tuple[float, str], float] = {}
        for load in (1.0, 1.2):
            for policy, predictor in WAYS:
                runs = []
                for seed in seeds:
                    requests = traffic(load * capacity(seed), seconds, seed)
                    runs.append(serve(policy, predictor, admission, requests, seconds))
                rows.append(line(load, policy, predictor, runs))
                goodput.setdefault((load, policy), sum(one.goodput for one in runs) / len(runs))
        at_capacity = max(value for (load, _), value in goodput.items() if load == 1.0)
        over = goodput[1.2, "deadline"]
        parts.append(
            f"Admission `{admission}`; at 1.2 `deadline` has {over / goodput[1.2, 'fcfs']:.1f} times the goodput of "
            f"`fcfs`, and {over / at_capacity:.0%} of the best goodput at capacity:\n\n{table(HEAD, rows)}"
        )
    return "\n\n".join(parts)


HEAD = ["load", "policy", "goodput, requests/s", "attainment", "refused", "TTFT p50, s", "TTFT p99, s", "E2E p50, s"]


def line(load: float, policy: str, predictor: str | None, runs: list[Found]) -> list[object]:
    ttft = percentiles(value for one in runs for value in one.run.ttfts())
    e2e = percentiles(
        one.timings.total_ms / 1e3 for found in runs for one in found.run.outcomes if one.timings is not None
    )
    offered = sum(one.offered for one in runs)
    return [
        f"{load:g}",
        policy if predictor is None else f"{policy}, {predictor}",
        f"{sum(one.goodput for one in runs) / len(runs):.2f}",
        f"{sum(one.met for one in runs) / offered:.1%}",
        f"{sum(one.refused for one in runs) / offered:.1%}",
        f"{ttft.p50:.2f}",
        f"{ttft.p99:.2f}",
        f"{e2e.p50:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of virtual time")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    body = report(arguments.seconds, range(arguments.seeds))
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.overload --seconds {arguments.seconds:g} --seeds {arguments.seeds}"
        write_section("overload", "Policies at 1.2 times of capacity", command, body)


if __name__ == "__main__":
    main()
