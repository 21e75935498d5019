"""A batch lane that fills idle time: what it adds in throughput, and what interactive requests notice of it.

Interactive requests come at 40 % of capacity; the batch lane always has work. Compared are the interactive requests
alone, both as one lane (what a server without lanes does), and the batch lane as it is by default and without a step
target. All settings see the same requests, in turn within each round, and the rounds are pooled; where time is real,
the interactive requests alone run twice a round, so that what differs between those two is the noise. A second table
has interactive requests that come in bursts. With --cpu-time real engines have one thread, and a clock of its CPU time,
so that others on the machine do not count. As a percentile needs more requests than a real engine serves in minutes,
the steps of its runs are fitted, and long runs are simulated with these.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import structs

from benchmarks.cpu_clock import CpuClock
from benchmarks.drive import drive
from benchmarks.engines import Model, assemble, simulated_loop
from benchmarks.results import table, write_section
from benchmarks.virtual import ROWS, VOCABULARY, NoisyCost, virtual_engine
from benchmarks.workloads import bursts, lognormal, poisson, prompt
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity, StepResult
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.observers import EngineObserver
from inflight.metrics.definitions import percentiles
from inflight.simulate.step_fit import fit
from inflight.simulate.steps import Step

LOAD = 0.4
MAX_STEPS = 4000  # that are fitted
WARM = 0.2  # share of a run that is served but not counted: the engine learns what its steps take


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine. seconds: how long interactive requests come; gap: between bursts. real: not on virtual time. steps:
    those of a real engine, as they are measured."""

    name: str
    vocabulary: int
    open: Callable[[SchedulingSettings], EngineLoop]
    seconds: float
    gap: float
    rounds: int
    real: bool = False
    steps: list[Step] = field(default_factory=list)


class StepLog(EngineObserver):
    def __init__(self, steps: list[Step]):
        self._steps = steps

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._steps.append(Step(features(plan), committed - planned))


def requests(kind: Kind, arrivals: Iterator[float], number: int, lane: str, seed: int) -> list[Request]:
    """Prompts p50 40, p99 200; outputs p50 40, p99 200."""
    rng = random.Random(seed)
    return [
        Request(
            request_id=f"{lane}-{index}",
            prompt_token_ids=prompt(rng, lognormal(rng, 40, 200, 300), kind.vocabulary),
            params=SamplingParams(temperature=0, max_tokens=300, ignore_eos=True),
            forced_output_tokens=lognormal(rng, 40, 200, 300),
            arrival=next(arrivals),
            lane=lane,
        )
        for index in range(number)
    ]


def at_once() -> Iterator[float]:
    while True:
        yield 0.0


@dataclass(slots=True)
class Found:
    """Seconds, of the interactive requests that count, over all rounds; tokens of both lanes, prompt and output, in
    the seconds that count."""

    ttfts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def add(self, kind: Kind, interactive: list[Request], batch: list[Request], lane: dict[str, Any] | None) -> None:
        """One run. lane: settings of the batch lane; None puts its requests into the interactive one."""
        mixed = batch if lane is not None else [structs.replace(one, lane="interactive") for one in batch]
        loop = kind.open(SchedulingSettings.of(lanes={"batch": lane} if lane else {}))
        if kind.real:
            loop.add_observer(StepLog(kind.steps))
        start = loop.clock.now()
        run = drive(loop, interactive + mixed, until=lambda one: one.request_id.startswith("interactive"))
        loop.close()
        end = start + max(one.arrival for one in interactive)
        begin = start + WARM * (end - start)
        for one in run.outcomes:
            within = sum(begin <= at <= end for at in one.token_times)
            self.output_tokens += within
            if one.token_times and begin <= one.token_times[0] <= end:
                self.prompt_tokens += len(one.request.prompt_token_ids)
            if one.request.request_id.startswith("interactive") and one.request.arrival >= begin:
                self.ttfts.append(one.token_times[0] - one.request.arrival)
                self.gaps += one.gaps
        self.seconds += end - begin

    @property
    def output_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.output_per_s + self.prompt_tokens / self.seconds


def capacity(kind: Kind) -> float:
    """Requests per second, by the tokens of the time in which all rows are taken and requests wait."""
    loop = kind.open(SchedulingSettings())
    run = drive(loop, requests(kind, at_once(), 200 if kind.real else 600, "interactive", 9))
    loop.close()
    firsts = sorted(one.token_times[0] for one in run.outcomes)
    begin, end = firsts[ROWS], firsts[-1]
    sizes = [len(one.request.prompt_token_ids) + len(one.token_times) for one in run.outcomes]
    tokens = sum(begin < at <= end for one in run.outcomes for at in one.token_times)
    tokens += sum(len(one.request.prompt_token_ids) for one in run.outcomes if begin < one.token_times[0] <= end)
    return tokens / (end - begin) / (sum(sizes) / len(sizes))


def measure(kind: Kind, arrivals: Callable[[int, float], Iterator[float]]) -> list[list[object]]:
    """arrivals(seed, rate)"""
    rate = capacity(kind)
    ways: dict[str, dict[str, Any] | None] = {"interactive alone": {}}
    if kind.real:
        ways["interactive alone, once more"] = {}
    else:
        ways["one lane for both"] = None
    ways["batch lane"] = {"background": True}
    if not kind.real:
        ways["batch lane, no target"] = {"step_target": "off"}
    found = {name: Found() for name in ways}
    for seed in range(kind.rounds):
        number = int(LOAD * rate * kind.seconds)
        interactive = requests(kind, arrivals(seed, LOAD * rate), number, "interactive", seed)
        batch = requests(kind, at_once(), int(1.2 * rate * kind.seconds), "batch", 100 + seed)
        for name in (*ways,) if seed % 2 == 0 else (*reversed(ways),):
            found[name].add(kind, interactive, [] if "alone" in name else batch, ways[name])
    return [line(kind, name, one, found["interactive alone"]) for name, one in found.items()]


HEAD = ["engine", "setting", "tokens/s", "× alone", "output tokens/s", "× alone", "TTFT mean, ms", "p99, ms", "change"]
HEAD += ["ITL mean, ms", "p99, ms", "change"]


def line(kind: Kind, name: str, found: Found, alone: Found) -> list[object]:
    ttft, itl = percentiles(found.ttfts), percentiles(found.gaps)
    before, gap_before = percentiles(alone.ttfts).p99, percentiles(alone.gaps).p99
    assert ttft.p99 is not None and ttft.mean is not None and itl.p99 is not None and itl.mean is not None
    assert before is not None and gap_before is not None
    return [
        kind.name,
        name,
        f"{found.tokens_per_s:,.0f}",
        f"{found.tokens_per_s / alone.tokens_per_s:.2f}",
        f"{found.output_per_s:,.0f}",
        f"{found.output_per_s / alone.output_per_s:.2f}",
        f"{ttft.mean * 1e3:,.1f}",
        f"{ttft.p99 * 1e3:,.1f}",
        f"{ttft.p99 / before - 1:+.0%}",
        f"{itl.mean * 1e3:,.1f}",
        f"{itl.p99 * 1e3:,.1f}",
        f"{itl.p99 / gap_before - 1:+.0%}",
    ]


def kinds(real: list[str], seconds: float | None, rounds: int, cpu: bool) -> list[Kind]:
    found = [
        Kind("virtual, 0.5B", VOCABULARY, virtual_engine, seconds=600, gap=8, rounds=rounds),
        Kind("virtual, noisy steps", VOCABULARY, noisy_engine, seconds=600, gap=8, rounds=rounds),
    ]
    for name in real:
        tiny = name == "built-in"
        model = Model(name if tiny else "qwen", 2048, 1024, threads=1 if cpu else None)
        found.append(
            Kind(
                f"real, {model.name}, {'CPU time of one thread' if cpu else 'time'}",
                model.vocab_size,
                partial(real_engine, model, cpu),
                seconds=seconds or (10 if tiny else 90),
                gap=0.5 if tiny else 8,
                rounds=rounds,
                real=True,
            )
        )
    return found


def real_engine(model: Model, cpu: bool, scheduling: SchedulingSettings) -> EngineLoop:
    settings = EngineSettings(max_num_seqs=ROWS, max_model_len=1024, num_blocks=2048)
    clock = CpuClock() if cpu else MonotonicClock()
    return assemble(model.executor(settings, scheduling), clock, settings, scheduling)


def modelled(kind: Kind) -> Kind:
    """The same engine in virtual time, with a fit of its steps."""
    model = fit(random.Random(0).sample(kind.steps, min(len(kind.steps), MAX_STEPS)))

    def open_loop(scheduling: SchedulingSettings) -> EngineLoop:
        capacity = Capacity(2048, 16, ROWS, 1024, kind.vocabulary)
        settings = EngineSettings(max_num_seqs=ROWS, max_model_len=1024, num_blocks=2048)
        return simulated_loop(capacity, settings, scheduling, model)

    seconds = 75 * kind.gap
    return Kind(f"simulated, steps of {kind.name}", kind.vocabulary, open_loop, seconds, kind.gap, 2 * kind.rounds)


def noisy_engine(scheduling: SchedulingSettings) -> EngineLoop:
    return virtual_engine(scheduling, NoisyCost())


def section(arguments: argparse.Namespace) -> str:
    found = kinds(arguments.real, arguments.seconds, arguments.rounds, arguments.cpu_time)
    steady = [row for kind in found for row in measure(kind, steady_arrivals)]
    found += [modelled(kind) for kind in found if kind.real]
    steady += [row for kind in found if kind.name.startswith("simulated") for row in measure(kind, steady_arrivals)]
    bursty = [row for kind in found if not kind.real for row in measure(kind, partial(bursty_arrivals, gap=kind.gap))]
    return rendered(steady, bursty)


def rendered(steady: list[list[object]], bursty: list[list[object]]) -> str:
    return "\n\n".join(
        [
            "Interactive requests at 40 % of capacity, Poisson arrivals. Nothing is set for the batch lane: a step "
            "beside interactive work is the shortest with three quarters of the tokens per second of a full one. "
            "Without a target it takes all that is left of a step. Noisy steps vary by a third at random, and every "
            "fiftieth takes three times as long. The real engine serves few requests, so that its percentiles are "
            "rough; those simulated with its steps are of long runs.",
            table(HEAD, steady),
            "The same load in bursts: a quarter of the time with four times the rate.",
            table(HEAD, bursty),
        ]
    )


def bursty_arrivals(seed: int, rate: float, gap: float) -> Iterator[float]:
    return bursts(random.Random(seed + 7), rate, gap)


def steady_arrivals(seed: int, rate: float) -> Iterator[float]:
    return poisson(random.Random(seed + 7), rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--real", choices=("built-in", "0.5b"), action="append", default=[], help="also on real engines"
    )
    parser.add_argument("--seconds", type=float, help="of a run on a real engine")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, on real engines")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    body = section(arguments)
    print(body)
    if arguments.write:
        command = "python -m benchmarks.batch_lane" + "".join(f" --real {one}" for one in arguments.real)
        command += f" --rounds {arguments.rounds}"
        command += f" --seconds {arguments.seconds:g}" if arguments.seconds else ""
        command += " --cpu-time" if arguments.cpu_time else ""
        write_section("batch_lane", "A batch lane in idle time", command, body)


if __name__ == "__main__":
    main()
