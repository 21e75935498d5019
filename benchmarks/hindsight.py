"""Distance to the optimum in hindsight: mean latency under our policies beside what no schedule can beat.

Arrivals, lengths and memory are known to the optimum beforehand. A step takes one unit of time whatever is in it, as
where memory bandwidth bounds decoding; a prompt is computed in the step of its first token. At step k of its own a
request holds the blocks of its prompt and k tokens. Memory bounds the sum at each step, rows the number. The optimum is
an integer program, solved by HiGHS:

- *Without preemption* one variable for each request and start: the program of arXiv 2502.07115.
- *With preemption at no cost* one for each token and step. No schedule of our engine can beat it, whose preempted
  sequences compute at least as much. Its linear relaxation is a bound where the program is too large.

Needs `pip install highspy`. Latency is from arrival to the last token, in steps.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import publish
from benchmarks.drive import drive
from benchmarks.engines import simulated_loop
from benchmarks.results import table
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.simulate.fitted import FittedModel

UNIT = FittedModel(step=1.0, token=(0.0,))
SECONDS = 120.0  # that a program may take; then what it has proved is the bound
RULES: dict[str, dict[str, Any]] = {
    "fcfs, paged": {"policy": "fcfs"},
    "fcfs, reserve-request": {"policy": "fcfs", "kv_allocation": "reserve-request"},
    "fcfs, expected-peak, oracle": {"policy": "fcfs", "kv_allocation": "expected-peak", "predictor": "oracle"},
    "sjf, paged, oracle": {"policy": "sjf", "predictor": "oracle"},
    "sjf, expected-peak, oracle": {"policy": "sjf", "kv_allocation": "expected-peak", "predictor": "oracle"},
    "hrrn, expected-peak, oracle": {"policy": "hrrn", "kv_allocation": "expected-peak", "predictor": "oracle"},
}


@dataclass(frozen=True, slots=True)
class Job:
    """A request. arrival: step. prompt, output: tokens."""

    arrival: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Instance:
    """Jobs, and a machine of so many blocks of `block` tokens and so many rows."""

    jobs: tuple[Job, ...]
    blocks: int
    rows: int
    block: int = 1

    def held(self, job: Job, token: int) -> int:
        """Return the blocks that a job holds in the step of an output token, the first being 0."""
        return -(-(job.prompt + token) // self.block)

    @property
    def horizon(self) -> int:
        """A step by which a schedule one after the other has ended."""
        return max(job.arrival for job in self.jobs) + sum(job.output for job in self.jobs)


class Program:
    """An integer program, in the solver's terms: variables between 0 and 1, rows with bounds."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._rows: list[tuple[float, float, dict[int, float]]] = []

    def variable(self, cost: float = 0.0) -> int:
        """Add a variable; return its index."""
        self._costs.append(cost)
        return len(self._costs) - 1

    def between(self, least: float, terms: Iterable[tuple[int, float]], most: float) -> None:
        """Demand that a sum of (variable, factor) lies between bounds."""
        factors: dict[int, float] = {}
        for variable, factor in terms:
            factors[variable] = factors.get(variable, 0.0) + factor
        self._rows.append((least, most, {key: value for key, value in factors.items() if value}))

    def solve(self, whole: bool) -> float:
        """Return the least cost, or what is proved of it after SECONDS. whole: no fractions."""
        import highspy

        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("time_limit", SECONDS)
        solver.setOptionValue("threads", 1)
        count = len(self._costs)
        solver.addVars(count, [0.0] * count, [1.0] * count)
        for index, cost in enumerate(self._costs):
            solver.changeColCost(index, cost)
            if whole:
                solver.changeColIntegrality(index, highspy.HighsVarType.kInteger)
        for least, most, factors in self._rows:
            solver.addRow(
                max(least, -highspy.kHighsInf),
                min(most, highspy.kHighsInf),
                len(factors),
                [*factors],
                [*factors.values()],
            )
        solver.run()
        info = solver.getInfo()
        return float(info.mip_dual_bound if whole else info.objective_function_value)


def without_preemption(instance: Instance, horizon: int | None = None) -> float:
    """Return the least sum of latencies where a job that has started runs to its end."""
    program, end = Program(), horizon or instance.horizon
    uses: list[list[tuple[int, float]]] = [[] for _ in range(end)]
    rows: list[list[tuple[int, float]]] = [[] for _ in range(end)]
    for job in instance.jobs:
        starts = []
        for start in range(job.arrival, end - job.output + 1):
            one = program.variable(start + job.output - job.arrival)
            starts.append((one, 1.0))
            for token in range(job.output):
                uses[start + token].append((one, instance.held(job, token)))
                rows[start + token].append((one, 1.0))
        program.between(1, starts, 1)
    for used, taken in zip(uses, rows, strict=True):
        program.between(0, used, instance.blocks)
        program.between(0, taken, instance.rows)
    return program.solve(whole=True)


def with_free_preemption(instance: Instance, whole: bool, horizon: int | None = None) -> float:
    """Return the least sum of latencies where a job may rest between tokens, holding nothing meanwhile.

    whole: exactly; otherwise the linear relaxation, which is at most that.
    """
    program, end = Program(), horizon or instance.horizon
    uses: list[list[tuple[int, float]]] = [[] for _ in range(end)]
    rows: list[list[tuple[int, float]]] = [[] for _ in range(end)]
    for job in instance.jobs:
        before: dict[int, int] = {}  # variables of the token before, by step
        for token in range(job.output):
            last = token == job.output - 1
            steps = range(job.arrival + token, end - (job.output - 1 - token))
            own = {step: program.variable(step + 1 - job.arrival if last else 0.0) for step in steps}
            program.between(1, ((one, 1.0) for one in own.values()), 1)
            for step, one in own.items():
                uses[step].append((one, instance.held(job, token)))
                rows[step].append((one, 1.0))
                if token:  # no more of it by this step than of the token before by the last
                    until = [(own[at], 1.0) for at in range(steps[0], step + 1)]
                    earlier = [(other, -1.0) for at, other in before.items() if at < step]
                    program.between(-1e30, until + earlier, 0)
            before = own
    for used, taken in zip(uses, rows, strict=True):
        program.between(0, used, instance.blocks)
        program.between(0, taken, instance.rows)
    return program.solve(whole)


def latency_under(instance: Instance, rule: str) -> tuple[float, int]:
    """Return the sum of latencies under one of RULES, and the step after the last."""
    longest = max(job.prompt + job.output for job in instance.jobs) + 1
    capacity = Capacity(instance.blocks, instance.block, instance.rows, longest, 1000)
    budget = instance.rows * longest
    settings = EngineSettings(
        max_num_seqs=instance.rows, max_num_batched_tokens=budget, enable_prefix_caching=False, max_model_len=longest
    )
    scheduling = SchedulingSettings.of(strategy="chunked", early_end_tokens=0, speculation="off", **RULES[rule])
    run = drive(simulated_loop(capacity, settings, scheduling, UNIT), requests(instance))
    ends = [(one.token_times[-1], one.request.arrival) for one in run.outcomes]
    first = min(arrival for _, arrival in ends) - min(job.arrival for job in instance.jobs)
    return sum(end - arrival for end, arrival in ends), round(max(end for end, _ in ends) - first)


def requests(instance: Instance) -> list[Request]:
    return [
        Request(
            request_id=str(index),
            prompt_token_ids=(3 + index,) * job.prompt,
            params=SamplingParams(temperature=0, max_tokens=job.output, ignore_eos=True),
            arrival=float(job.arrival),
            forced_output_tokens=job.output,
        )
        for index, job in enumerate(instance.jobs)
    ]


def drawn(seed: int, jobs: int, longest: int, demand: float, rows: int = 1000) -> Instance:
    """Return a random instance. demand: what all jobs need at their ends, over memory."""
    rng = random.Random(seed)
    found = tuple(
        Job(rng.randrange(longest), rng.randint(1, longest), max(1, min(longest, round(rng.lognormvariate(1.2, 0.9)))))
        for _ in range(jobs)
    )
    ends = [job.prompt + job.output - 1 for job in found]
    return Instance(found, max(max(ends), round(sum(ends) / demand)), rows)


def distances(instances: Sequence[Instance], exact: bool) -> list[list[object]]:
    """Return a line for each rule: its latency over the optimum's, the mean and the greatest over instances."""
    found: dict[str, list[tuple[float, float]]] = {rule: [] for rule in RULES}
    preempting = []
    for instance in instances:
        sums = {rule: latency_under(instance, rule) for rule in RULES}
        horizon = max(end for _, end in sums.values())
        bound = with_free_preemption(instance, exact, horizon)
        optimum = without_preemption(instance, horizon)
        preempting.append(optimum / bound)
        for rule, (total, _) in sums.items():
            found[rule].append((total / optimum, total / bound))
    lines: list[list[object]] = [_line("optimum without preemption", [(1.0, one) for one in preempting])]
    return lines + [_line(rule, ratios) for rule, ratios in found.items()]


def _line(name: str, ratios: Sequence[tuple[float, float]]) -> list[object]:
    own, bound = zip(*ratios, strict=True)
    return [
        name,
        f"{statistics.mean(own):.3f}",
        f"{max(own):.2f}",
        f"{statistics.mean(bound):.3f}",
        f"{max(bound):.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10, help="of each size")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    seeds = range(arguments.instances)
    small = distances([drawn(seed, 8, 8, 2.5) for seed in seeds], exact=True)
    large = distances([drawn(seed, 16, 14, 4.0) for seed in seeds], exact=False)
    of = ["over the optimum without preemption", "at most", "over the bound", "at most"]
    text = (
        f"{arguments.instances} random instances of a size; memory for a part of the batch; each step takes one unit. "
        "Latency in sum, over that of the best schedule that knows arrivals and lengths beforehand: the optimum where "
        "a sequence that has started runs to its end (arXiv 2502.07115), and the bound, in which it may rest at no "
        "cost between two tokens. So preemption costs nothing here, and rules are compared by whom they serve when. "
        "Prefix caching is off."
    )
    body = [
        text,
        "8 requests of at most 8 + 8 tokens, 2.5 times the memory. The bound is an integer program's, and exact.",
        table(["8 requests", *of], small),
        "16 requests of at most 14 + 14 tokens, 4 times the memory. The bound is the program's linear relaxation.",
        table(["16 requests", *of], large),
    ]
    publish("hindsight", "Distance to the optimum in hindsight", "\n\n".join(body), arguments.write)


if __name__ == "__main__":
    main()
