"""How near a calibrated simulation comes to the real engine, on traffic that it was not fitted on.

    python -m benchmarks.simulation_accuracy [--model qwen|built-in|tiny] [--seconds S] [--requests N] [--write]

First `inflight calibrate` in so many seconds. Then, for real twice and once simulated: the capacity, as a closed loop
that keeps all rows busy, and Poisson arrivals at 0.3, 0.6 and 0.9 of the first measured capacity. Real runs of all
loads come in turn before they are repeated, so that how far two of them lie apart is what this machine's noise is.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.comparison import options, publish, tell
from benchmarks.engines import Model
from benchmarks.results import table
from inflight.assembly import budget
from inflight.config import EngineSettings
from inflight.core.plan import Capacity
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary
from inflight.scheduling import SchedulingSettings
from inflight.simulate.calibration import Measured, calibrate, warnings
from inflight.simulate.fitted import FittedModel
from inflight.simulate.requests import Requests
from inflight.simulate.simulation import Pool, Setup, simulate, steady
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.driving import Driver
from inflight.workload.lengths import Lognormal
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Workload

ROWS, NUM_BLOCKS, MODEL_LEN = 32, 4096, 2048
SHARES = (0.3, 0.6, 0.9)
SEED = 7  # of the judged traffic; calibration has its own
P50, P99, CAPACITY = 0.05, 0.10, 0.05  # asked
OF_SPREAD = 1.5  # or so many times the distance between the two real runs
FIGURES = [(name, share) for name in ("ttft", "tpot", "e2e") for share in ("p50", "p99")]


@dataclass(frozen=True, slots=True)
class Compared:
    load: str
    figure: str
    real: tuple[float, float]
    simulated: float
    asked: float

    @property
    def error(self) -> float:
        return self.simulated / (sum(self.real) / 2) - 1

    @property
    def spread(self) -> float:
        return abs(self.real[0] - self.real[1]) / (sum(self.real) / 2)

    @property
    def holds(self) -> bool:
        return abs(self.error) <= max(self.asked, OF_SPREAD * self.spread)

    def row(self, unit: float = 1e3) -> list[object]:
        first, second = (f"{value * unit:,.1f}" for value in self.real)
        asked = f"{self.asked:.0%} or {OF_SPREAD * self.spread:.1%}"
        return [
            *(self.load, self.figure, first, second, f"{self.simulated * unit:,.1f}", f"{self.error:+.1%}", asked),
            "yes" if self.holds else "**no**",
        ]


class Both:
    """The same engine, real and simulated."""

    def __init__(self, model: Model, seconds: float):
        self._model = model
        self._settings = EngineSettings(max_num_seqs=ROWS, max_model_len=model.max_model_len, num_blocks=NUM_BLOCKS)
        self._scheduling = SchedulingSettings()
        executor = model.executor(self._settings, self._scheduling)
        loop = model.loop(self._settings, self._scheduling)
        measured = Measured(executor, loop, budget(self._settings, self._scheduling), {})
        self.fitted: FittedModel = calibrate(measured, seconds, tell)
        self.capacity: Capacity = executor.capacity

    def real(self, workload: Workload) -> Summary:
        loop = self._model.loop(self._settings, self._scheduling)
        observations = Driver(loop, workload, Requests(workload, self.capacity.vocab_size, SEED)).run()
        return self._told("real", observations)

    def simulated(self, workload: Workload) -> Summary:
        pool = Pool(self.capacity, self._settings, self._scheduling, lambda number: self.fitted)
        return self._told("simulated", simulate(workload, Setup(pool, content_seed=SEED)).observations)

    @staticmethod
    def _told(name: str, observations: list[Observation]) -> Summary:
        summary = steady(observations)
        assert summary.ttft.p50 is not None and summary.tpot.p50 is not None
        tell(
            f"  {name}: {summary.requests_per_s:.2f} requests/s, TTFT p50 {summary.ttft.p50 * 1e3:.0f} ms, TPOT p50 "
            f"{summary.tpot.p50 * 1e3:.1f} ms"
        )
        return summary


def traffic(requests: int, longest: int, rate: float | None = None) -> Workload:
    """Poisson arrivals of this rate; None: a closed loop that keeps twice as many requests under way as run."""
    kind = TrafficClass(
        name="", share=1.0, input=Lognormal(80, 700, longest // 2 - 1), output=Lognormal(50, 250, longest // 2 - 1)
    )
    arrivals = None if rate is None else Poisson(rate)
    concurrency = 2 * ROWS if rate is None else None
    return synthesize([kind], arrivals=arrivals, requests=requests, seed=SEED, concurrency=concurrency)


def compared(load: str, real: list[Summary], simulated: Summary) -> list[Compared]:
    found = []
    for name, share in FIGURES:
        values = [getattr(getattr(one, name), share) for one in (*real, simulated)]
        asked = P50 if share == "p50" else P99
        found.append(Compared(load, f"{name.upper()} {share}, ms", (values[0], values[1]), values[2], asked))
    return found


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.add_argument("--seconds", type=float, default=150, help="of calibration (default 150)")
    parser.add_argument("--requests", type=int, default=160, help="of each run (default 160)")
    arguments = parser.parse_args()
    model = Model(arguments.model, NUM_BLOCKS, MODEL_LEN)
    both = Both(model, arguments.seconds)
    full = traffic(max(arguments.requests, 6 * ROWS), model.max_model_len)
    first = both.real(full)
    loads = {
        f"{share:g}": traffic(arguments.requests, model.max_model_len, share * first.requests_per_s) for share in SHARES
    }
    runs: dict[str, list[Summary]] = {load: [] for load in loads}
    for repeat in range(2):
        for load, workload in loads.items():
            tell(f"load {load}, run {repeat + 1}")
            runs[load].append(both.real(workload))
    second = both.real(full)
    rates = (first.requests_per_s, second.requests_per_s)
    capacity = Compared("1", "capacity, requests/s", rates, both.simulated(full).requests_per_s, CAPACITY)
    rows = [row for load, workload in loads.items() for row in compared(load, runs[load], both.simulated(workload))]
    body = report(model, both.fitted, capacity, rows)
    publish("simulation_accuracy", "Simulated against measured", body, arguments.write)


def report(model: Model, fitted: FittedModel, capacity: Compared, rows: list[Compared]) -> str:
    provenance = fitted.provenance
    assert provenance is not None and provenance.noise is not None
    errors = [[kind, f"{error:.1%}", f"{count:,}", "< 5 %"] for kind, (error, count) in provenance.held_out.items()]
    head = ["load", "", "real", "real again", "simulated", "error", "asked", "holds"]
    held = sum(one.holds for one in (capacity, *rows))
    return "\n\n".join(
        [
            f"{model.name}, {ROWS} rows; prompts lognormal (p50 80, p99 700), outputs lognormal (p50 50, p99 250). "
            "Load is relative to the capacity measured first. Errors are against the mean of two real runs; asked is a "
            f"share, or {OF_SPREAD} times how far these lie apart, whichever is more: {held} of {len(rows) + 1} hold.",
            f"Calibration: {provenance.steps:,} steps; equal steps differ by {provenance.noise:.1%} in the median. "
            + " ".join(warnings(fitted)),
            table(["steps not fitted", "mean absolute relative error", "steps", "asked"], errors),
            table(head, [capacity.row(1.0), *(one.row() for one in rows)]),
        ]
    )


if __name__ == "__main__":
    main()
