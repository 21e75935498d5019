"""How near a calibrated simulation comes to the real engine, on traffic that it was not fitted on.

    python -m benchmarks.simulation_accuracy [--model built-in|qwen|tiny] [--seconds S] [--minutes M] [--tries N]
        [--write]

First `inflight calibrate` in S seconds. Then, for real and simulated: the capacity, as a closed loop that keeps all
rows busy, and Poisson arrivals at 0.3, 0.6 and 0.9 of the first measured capacity. Real runs of all loads come in turn
before they are repeated, so that their distance is this machine's noise. They take about M minutes together, and longer
where runs are tried again (benchmarks/undisturbed.py).
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass

from msgspec import structs

from benchmarks.comparison import log_line, options, publish, steady
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.undisturbed import TRIES, UndisturbedRuns, driven, lone_tpot
from inflight.config.assembly import budget
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary
from inflight.simulate.calibrate import CalibrationTarget, calibrate
from inflight.simulate.simulation import Pool, Requests, SimulationSetup, simulate
from inflight.simulate.steps import Errors
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.driving import Driver
from inflight.workload.lengths import Lognormal
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Workload

ROWS, NUM_BLOCKS, MODEL_LEN = 32, 4096, 2048
SHARES = (0.3, 0.6, 0.9)
CLOSED = 5 * ROWS  # requests that capacity is measured with
MIN_REQUESTS, MAX_REQUESTS = 60, 1500  # requests of a load
SEED = 7  # of the judged traffic; calibration has its own
P50, P99, CAPACITY = 0.05, 0.10, 0.05  # asked
OF_SPREAD = 1.5  # or so many times the distance between the two real runs
FIGURES = [(name, share) for name in ("ttft", "tpot", "e2e") for share in ("p50", "p99")]


@dataclass(frozen=True, slots=True)
class Compared:
    """real: of the repeated runs. asked: share that the simulated figure may be off their mean."""

    load: str
    figure: str
    real: tuple[float, ...]
    simulated: float
    asked: float

    @property
    def error(self) -> float:
        return self.simulated / statistics.fmean(self.real) - 1

    @property
    def spread(self) -> float:
        return (max(self.real) - min(self.real)) / statistics.fmean(self.real)

    @property
    def holds(self) -> bool:
        return abs(self.error) <= max(self.asked, OF_SPREAD * self.spread)

    def row(self, unit: float = 1e3) -> list[object]:
        real = ", ".join(f"{value * unit:,.1f}" for value in self.real)
        asked = f"{self.asked:.0%} or {OF_SPREAD * self.spread:.1%}"
        return [
            *(self.load, self.figure, real, f"{self.simulated * unit:,.1f}", f"{self.error:+.1%}", asked),
            "yes" if self.holds else "**no**",
        ]


class Both:
    """The same engine, real and simulated."""

    def __init__(self, model: Model, seconds: float, tries: int):
        """seconds: of a calibration. tries: of the calibration, and of a real run."""
        self.name = model.name
        self._model = model
        self._settings = EngineSettings(max_num_seqs=ROWS, max_model_len=model.max_model_len, num_blocks=NUM_BLOCKS)
        self._scheduling = SchedulingSettings()
        executor = model.executor(self._settings, self._scheduling)
        loop = model.loop(self._settings, self._scheduling)
        self.capacity: Capacity = executor.capacity
        target = CalibrationTarget(executor, loop, budget(self._settings, self._scheduling), {})
        gc.collect()
        gc.freeze()  # as the server does: what lives through all runs is not looked at again and again
        self.runs = UndisturbedRuns(lambda: lone_tpot(model.loop(self._settings, self._scheduling)), tries)
        self.fitted = self.runs.calibrate(lambda: calibrate(target, seconds, log_line))

    def real(self, workload: Workload) -> Summary:
        return self.runs.run(lambda: self._run(workload))

    def _run(self, workload: Workload) -> tuple[Summary, float]:
        """Run a workload. The prompts are there before the first is sent: making them is the client's work."""
        loop = self._model.loop(self._settings, self._scheduling)
        make = Requests(workload, self.capacity.vocab_size, SEED)
        made = [make(index, 0.0) for index in range(len(workload.entries))]
        driver = Driver(loop, workload, lambda index, arrival: structs.replace(made[index], arrival=arrival))
        observations, waited = driven(driver)
        return self._summary("real", observations), waited

    def simulated(self, workload: Workload) -> Summary:
        pool = Pool(self.capacity, self._settings, self._scheduling, lambda number: self.fitted)
        return self._summary("simulated", simulate(workload, SimulationSetup(pool, content_seed=SEED)).observations)

    @staticmethod
    def _summary(name: str, observations: list[Observation]) -> Summary:
        summary = steady(observations)
        assert summary.ttft.p50 is not None and summary.tpot.p50 is not None
        log_line(
            f"  {name}: {summary.requests_per_s:.2f} requests/s, TTFT p50 {summary.ttft.p50 * 1e3:.0f} ms, TPOT p50 "
            f"{summary.tpot.p50 * 1e3:.1f} ms"
        )
        return summary


def traffic(requests: int, longest: int, rate: float | None = None) -> Workload:
    """Poisson arrivals of this rate; None: a closed loop that keeps twice as many requests in flight as run."""
    kind = TrafficClass(
        name="", share=1.0, input=Lognormal(80, 700, longest // 2 - 1), output=Lognormal(50, 250, longest // 2 - 1)
    )
    arrivals = None if rate is None else Poisson(rate)
    concurrency = 2 * ROWS if rate is None else None
    return synthesize([kind], arrivals=arrivals, requests=requests, seed=SEED, concurrency=concurrency)


def compared(load: str, real: list[Summary], simulated: Summary) -> list[Compared]:
    found = []
    for name, share in FIGURES:
        *values, predicted = [getattr(getattr(one, name), share) for one in (*real, simulated)]
        asked = P50 if share == "p50" else P99
        found.append(Compared(load, f"{name.upper()} {share}, ms", tuple(values), predicted, asked))
    return found


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.set_defaults(model="built-in")
    parser.add_argument("--seconds", type=float, default=150, help="of calibration (default 150)")
    parser.add_argument("--minutes", type=float, default=6, help="of all real runs together (default 6)")
    parser.add_argument(
        "--tries", type=int, default=TRIES, help=f"at most, of the calibration and of a real run (default {TRIES})"
    )
    arguments = parser.parse_args()
    model = Model(arguments.model, NUM_BLOCKS, MODEL_LEN)
    both = Both(model, arguments.seconds, arguments.tries)
    full = traffic(CLOSED, model.max_model_len)
    capacity = both.real(full)
    seconds = 60 * arguments.minutes / arguments.repeats - CLOSED / capacity.requests_per_s
    requests = int(seconds * capacity.requests_per_s / sum(1 / share for share in SHARES))
    requests = max(MIN_REQUESTS, min(MAX_REQUESTS, requests))
    loads = {f"{share:g}": traffic(requests, model.max_model_len, share * capacity.requests_per_s) for share in SHARES}
    runs: dict[str, list[Summary]] = {load: [] for load in loads}
    full_runs = [capacity]
    for repeat in range(arguments.repeats):
        if repeat:
            full_runs.append(both.real(full))
        for load, workload in loads.items():
            log_line(f"load {load}, run {repeat + 1}")
            runs[load].append(both.real(workload))
    rates = tuple(one.requests_per_s for one in full_runs)
    rows = [Compared("1", "capacity, requests/s", rates, both.simulated(full).requests_per_s, CAPACITY)]
    for load, workload in loads.items():
        rows += compared(load, runs[load], both.simulated(workload))
    body = report(both, requests, rows)
    publish("simulation_accuracy", "Simulated against measured", body, arguments.write)


def report(both: Both, requests: int, rows: list[Compared]) -> str:
    provenance = both.fitted.provenance
    assert provenance is not None
    kinds = [
        [kind, count, f"{error:.1%}", "< 5 %", *(_share(each, kind) for each in (provenance.single, provenance.noise))]
        for kind, (error, count) in provenance.held_out.items()
    ]
    others = "" if provenance.others is None else f" Others had {provenance.others:.1%} of the processors' time."
    real = f"real, {len(rows[0].real)} runs in turn"
    return "\n\n".join(
        [
            f"{both.name}, {ROWS} rows; prompts lognormal (p50 80, p99 700), outputs lognormal (p50 50, p99 250).",
            f"Calibration on {provenance.steps:,} steps, judged by traffic that was not fitted. Equal steps of it came "
            "several times: their middle is what the error is taken of. Single steps are beside it, and how far equal "
            f"ones are off their middle, which is the machine's noise.{others}",
            table(["kind", "steps", "error", "asked", "of single steps", "noise"], kinds),
            f"Then {requests} requests at each load, relative to the capacity measured first. {both.runs.describe()} "
            f"Errors are against the mean of the real runs; asked is a share, or {OF_SPREAD} times the distance of "
            f"these where that is more: {sum(one.holds for one in rows)} of {len(rows)} hold. Within {P99:.0%} or that "
            f"distance itself are {sum(abs(one.error) <= max(P99, one.spread) for one in rows)}; the largest error is "
            f"{max(abs(one.error) for one in rows):.1%}.",
            table(
                ["load", "", real, "simulated", "error", "asked", "holds"],
                [rows[0].row(1.0), *(one.row() for one in rows[1:])],
            ),
        ]
    )


def _share(errors: Errors, kind: str) -> str:
    return f"{errors[kind][0]:.1%}" if kind in errors else "-"


if __name__ == "__main__":
    main()
