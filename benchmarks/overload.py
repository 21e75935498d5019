"""Policies under overload: goodput at 1.2 times of measured capacity, ten minutes of virtual time.

Two classes of traffic, half of the requests each: a first token within 2 s, and within 5 s; no gap between tokens above
0.5 s. Lengths have heavy tails. Capacity is what the engine serves of this very mix when all of it waits from the
start. Every policy sees the same requests: without admission control, with a queue bounded by what capacity serves
within the shorter and within the longer target, and with `slo`, which refuses requests that cannot be in time. How far
off the predicted output lengths were is said where a predictor is asked.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import takewhile

from msgspec import structs

from benchmarks.drive import Outcome, Run, drive
from benchmarks.results import table, write_section
from benchmarks.virtual import VOCABULARY, virtual_engine
from benchmarks.workloads import heavy_tailed
from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.output_length import PredictionError
from inflight.core.types.request import SLO, Request
from inflight.metrics.definitions import percentiles

TARGETS = (2.0, 5.0)  # seconds to the first token, of the classes in turn
WORST_GAP = 0.5  # seconds
WAYS = (("fcfs", None), ("sjf", None), ("sjf", "oracle"), ("hrrn", None), ("hrrn", "oracle"), ("deadline", None))


@dataclass(frozen=True, slots=True)
class Found:
    offered: int
    met: int
    refused: int
    seconds: float
    run: Run
    predictions: PredictionError | None

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
        structs.replace(one, slo=SLO(ttft=TARGETS[index % len(TARGETS)], itl=WORST_GAP))
        for index, one in enumerate(takewhile(lambda one: one.arrival < seconds, offered))
    ]


def capacity(seed: int) -> float:
    """Requests per second while requests wait."""
    loop = virtual_engine(SchedulingSettings())
    run = drive(loop, heavy_tailed(1000, VOCABULARY, seed, max_tokens=1024))
    # Without the end, when rows stand empty: from the first token to the last first token.
    firsts = sorted(one.token_times[0] for one in run.outcomes)
    return (len(firsts) - 1) / (firsts[-1] - firsts[0])


@dataclass(frozen=True, slots=True)
class Gate:
    """Admission control. target: seconds in which capacity serves as many requests as may wait."""

    mode: str
    target: float | None = None

    def settings(self, policy: str, predictor: str | None, rate: float) -> SchedulingSettings:
        """rate: capacity, requests per second."""
        bound = None if self.target is None else max(1, int(rate * self.target))
        return SchedulingSettings.of(policy=policy, predictor=predictor, admission=self.mode, max_queued_requests=bound)

    def __str__(self) -> str:
        bound = "" if self.target is None else f", as many waiting as are served within {self.target:g} s"
        return f"`{self.mode}`{bound}"


GATES = (Gate("off"), *(Gate("queue", target) for target in TARGETS), Gate("slo"))


def serve(settings: SchedulingSettings, requests: list[Request], seconds: float) -> Found:
    loop = virtual_engine(settings)
    run = drive(loop, requests)
    predictions = loop.stats().predictions if settings.asks_predictor else None
    return Found(len(requests), sum(met(one) for one in run.outcomes), refused(run), seconds, run, predictions)


def met(one: Outcome) -> bool:
    assert one.request.slo.ttft is not None
    return one.met(one.request.slo.ttft, one.request.slo.itl)


def refused(run: Run) -> int:
    return sum(one.refused is not None for one in run.outcomes)


def report(seconds: float, seeds: range) -> str:
    rates = {seed: capacity(seed) for seed in seeds}
    rate = sum(rates.values()) / len(rates)
    return "\n\n".join([_introduction(rate), *(_under(gate, rates, seconds) for gate in GATES)])


def _introduction(rate: float) -> str:
    return (
        f"Capacity is {rate:.2f} requests/s of this mix; at 1.2 times of it {1.2 * rate:.2f} are offered, of which no "
        f"order of the same work can serve more than {1 / 1.2:.0%}. What lies above that is won by refusing, or "
        "leaving to the end, requests that are longer than others."
    )


def _under(gate: Gate, rates: dict[int, float], seconds: float) -> str:
    """One kind of admission: its table, and what the figures in it say."""
    rows: list[list[object]] = []
    base = 0.0  # p99 of E2E under the first policy at a load
    goodput: dict[tuple[float, str], float] = {}
    for load in (1.0, 1.2):
        for policy, predictor in WAYS:
            runs = [
                serve(gate.settings(policy, predictor, rate), traffic(load * rate, seconds, seed), seconds)
                for seed, rate in rates.items()
            ]
            base = base if rows and rows[-1][0] == f"{load:g}" else e2e(runs)[1]
            rows.append(line(load, policy, predictor, runs, base))
            goodput.setdefault((load, policy), sum(one.goodput for one in runs) / len(runs))
    served = sum(rates.values()) / len(rates)
    at_capacity = max(value for (load, _), value in goodput.items() if load == 1.0)
    over, fcfs = goodput[1.2, "deadline"], goodput[1.2, "fcfs"]
    text = (
        f"Admission {gate}. At 1.2 `deadline` has {over / fcfs:.2f} times the goodput of `fcfs`, and "
        f"{over / at_capacity:.0%} of the best goodput at capacity. "
    )
    if 1.5 * fcfs > served:
        text += (
            f"1.5 times the {fcfs:.2f}/s of `fcfs` would be {1.5 * fcfs:.2f}/s, {1.5 * fcfs / served:.0%} of capacity; "
            f"`deadline` has {over / served:.0%} of it."
        )
    return f"{text.rstrip()}\n\n{table(HEAD, rows)}"


HEAD = ["load", "policy", "goodput, requests/s", "attainment", "refused", "TTFT p50, s", "TTFT p99, s", "E2E p50, s"]
HEAD += ["E2E p99, s", "of `fcfs`", "lengths off by", "within twice", "bias"]


def e2e(runs: list[Found]) -> tuple[float, float]:
    """Return p50 and p99 of the seconds from arrival to end, of all answers."""
    answers = (one for found in runs for one in found.run.outcomes)
    seconds = percentiles(one.timings.total_ms / 1e3 for one in answers if one.timings is not None)
    assert seconds.p50 is not None and seconds.p99 is not None
    return seconds.p50, seconds.p99


def line(load: float, policy: str, predictor: str | None, runs: list[Found], base: float) -> list[object]:
    """base: p99 of E2E that this line's is compared with."""
    ttft, (e2e_p50, e2e_p99) = percentiles(value for one in runs for value in one.run.ttfts()), e2e(runs)
    offered = sum(one.offered for one in runs)
    return [
        f"{load:g}",
        policy if predictor is None else f"{policy}, {predictor}",
        f"{sum(one.goodput for one in runs) / len(runs):.2f}",
        f"{sum(one.met for one in runs) / offered:.1%}",
        f"{sum(one.refused for one in runs) / offered:.1%}",
        f"{ttft.p50:.2f}",
        f"{ttft.p99:.2f}",
        f"{e2e_p50:.2f}",
        f"{e2e_p99:.2f}",
        f"{e2e_p99 / base:.2f}×",
        *_predictions([one.predictions for one in runs if one.predictions is not None]),
    ]


def _predictions(errors: list[PredictionError]) -> list[str]:
    """Means over the runs; dashes where the predictor is not used."""
    if not errors:
        return ["-"] * 3
    count = len(errors)
    return [
        f"{sum(one.relative_error for one in errors) / count:.0%}",
        f"{sum(one.within_twice for one in errors) / count:.0%}",
        f"{sum(one.bias for one in errors) / count:+.0%}",
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
