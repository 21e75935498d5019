"""Measure what it brings that a step ends with the prompt that it completes, simulated with step times measured here.

    inflight calibrate --model M --max-num-seqs 64 --max-num-batched-tokens 576 --no-prefix-caching --output FILE
    python -m benchmarks.early_end --step-model FILE [--runs N] [--write]

The 64 mixed requests of `benchmarks.peers`, in another order and with other arrivals in each run, the same for every
setting: so many real runs would take days, and single ones differ more by their arrivals than by the setting.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.trials import LOAD
from benchmarks.peers.workload import mixed
from benchmarks.results import table, write_section
from benchmarks.workloads import poisson
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.strategies.chunked import EARLY_END
from inflight.core.types.plan import Capacity
from inflight.metrics.summary import Summary, summarize, whole
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.simulate.sources import read_step_model
from inflight.simulate.steps import StepModel
from inflight.workload.workload import Entry, Workload

ROWS = 64
BUDGETS = (128, 192, 320, 576)  # tokens a step
ENDS = (0, EARLY_END, 2 * EARLY_END, 4 * EARLY_END)
CAPACITY = Capacity(num_blocks=8192, block_size=16, max_rows=ROWS, max_model_len=4096, vocab_size=1000)


@dataclass(frozen=True, slots=True)
class Case:
    budget: int
    early_end: int

    def run(self, model: StepModel, workload: Workload) -> Summary:
        settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=self.budget, enable_prefix_caching=False)
        scheduling = SchedulingSettings.of(early_end_tokens=self.early_end)
        observations = simulate(
            workload, SimulationSetup(Pool(CAPACITY, settings, scheduling, lambda number: model))
        ).observations
        return summarize(observations, whole(observations))


def at_once() -> Workload:
    return Workload(tuple(Entry(0.0, len(one.prompt), one.output_tokens) for one in mixed()), "at once")


def arriving(rate: float, run: int) -> Workload:
    """Shuffled, as Poisson arrivals of so many requests a second."""
    lengths = [(len(one.prompt), one.output_tokens) for one in mixed()]
    random.Random(run).shuffle(lengths)
    times = poisson(random.Random(f"arrivals {run}"), rate)
    return Workload(tuple(Entry(at, *one) for at, one in zip(times, lengths, strict=False)), f"run {run}")


def rows(model: StepModel, runs: int) -> Iterator[list[object]]:
    """Return each setting's means over all runs, and its differences from filled steps of the same budget."""
    capacity = Case(BUDGETS[0], 0).run(model, at_once()).requests_per_s
    workloads = [arriving(LOAD * capacity, run) for run in range(runs)]
    for budget in BUDGETS:
        filled: list[float] = []
        for early_end in ENDS:
            case = Case(budget, early_end)
            found = [case.run(model, workload) for workload in workloads]
            burst = case.run(model, at_once())
            tails = [one.ttft.p99 or 0.0 for one in found]
            filled = filled or tails
            yield [
                budget,
                early_end or "filled",
                *(f"{1e3 * statistics.fmean(times):,.0f}" for times in _latencies(found)),
                f"{statistics.fmean(tails) / statistics.fmean(filled) - 1:+.1%}",
                sum(one < other for one, other in zip(tails, filled, strict=True)),
                f"{burst.output_tokens_per_s:,.0f}",
                f"{burst.ttft.mean or 0.0:.1f}",
                f"{burst.e2e.mean or 0.0:.1f}",
            ]


def _latencies(found: list[Summary]) -> Iterator[list[float]]:
    """Seconds by run: TTFT at the median, on average and at the 99th percentile; ITL at the 99th."""
    yield [one.ttft.p50 or 0.0 for one in found]
    yield [one.ttft.mean or 0.0 for one in found]
    yield [one.ttft.p99 or 0.0 for one in found]
    yield [one.itl.p99 or 0.0 for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-model", type=Path, required=True, help="of `inflight calibrate`")
    parser.add_argument("--runs", type=int, default=40, help="Poisson runs of each setting (default 40)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    model = read_step_model(arguments.step_model)
    head = [
        *("tokens a step", "ends from", "TTFT p50, ms", "mean", "p99", "ITL p99, ms"),
        *("TTFT p99 against filled", f"shorter in, of {arguments.runs} runs", "all at once, output tokens/s"),
        *("TTFT then, mean, s", "E2E then, mean, s"),
    ]
    body = (
        f"Simulated with step times {model.name}: {arguments.runs} runs of 64 mixed requests that arrive at "
        f"{LOAD:.0%} of capacity, and the same all at once. A step that completes a prompt ends with it once it holds "
        "so many tokens, or is filled with pieces of the next prompts.\n\n"
    ) + table(head, list(rows(model, arguments.runs)))
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.early_end --step-model FILE --runs {arguments.runs}"
        write_section("early_end", "A step that ends with the prompt it completes", command, body)


if __name__ == "__main__":
    main()
