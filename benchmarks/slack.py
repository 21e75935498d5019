"""Slack batching beside chunked and adaptive: the load at which 95 % of the requests meet their own targets.

    python -m benchmarks.slack TRACE [--real 0.5b --rounds 3] [--write]

TRACE: Azure's conversation trace of 2023 (Patel et al., "Splitwise", ISCA 2024), of which five windows of requests are
served at rising rates. A request meets its targets with its first token within 1 s, and a mean time per token of 60 ms
or 200 ms, half of the requests each. These are targets for GPUs: on an A100 by its data sheet they are taken as they
are. On the 0.5B shape lengths are an eighth and times are as many times as long as its step of 8 decodes and 64 prompt
tokens is than the A100's of 64 and 512. Every strategy sees the same requests.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from msgspec import structs

from benchmarks.comparison import log_line
from benchmarks.drive import Run, drive
from benchmarks.engines import Model, simulated_loop
from benchmarks.results import table, write_section
from benchmarks.virtual import BUDGET, COST, ROWS, VOCABULARY, virtual_engine
from benchmarks.workloads import prompt
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.metrics.confidence import Estimate, estimate, paired_ratio
from inflight.metrics.definitions import percentiles
from inflight.models.known import read_model
from inflight.simulate.hardware import find_gpu
from inflight.simulate.roofline import Roofline
from inflight.simulate.steps import StepModel
from inflight.workload.traces import load
from inflight.workload.workload import Entry

TTFT, TPOTS = 1.0, (0.06, 0.2)  # seconds
WINDOWS, ATTAINMENT = 5, 0.95
SHRINK = 8  # by which lengths are divided where a step has an eighth of a GPU's tokens
GPU_ROWS, GPU_BUDGET, GPU_BLOCKS, GPU_LENGTH = 256, 768, 25_000, 8192
POLICIES = ("fcfs", "deadline")
STRATEGIES = ("chunked", "adaptive", "slack")


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine. factor: of times; shrink: of lengths; requests: in a window; rates: requests/s,
    the grid of loads."""

    name: str
    open: Callable[[SchedulingSettings], EngineLoop]
    vocabulary: int
    factor: float
    shrink: int
    longest: int
    requests: int
    rates: Sequence[float]
    policies: Sequence[str]


@dataclass(frozen=True, slots=True)
class Found:
    """One run. ttft, e2e, gap: 99th percentiles in seconds."""

    attainment: float
    first: float
    pace: float
    ttft: float
    e2e: float
    gap: float
    tokens_per_s: float


def a100() -> StepModel:
    return Roofline(read_model("llama-3-8b"), find_gpu("a100-80"))


def gpu_engine(scheduling: SchedulingSettings) -> EngineLoop:
    capacity = Capacity(GPU_BLOCKS, 16, GPU_ROWS, GPU_LENGTH, VOCABULARY)
    settings = EngineSettings(max_num_seqs=GPU_ROWS, max_num_batched_tokens=GPU_BUDGET)
    return simulated_loop(capacity, settings, scheduling, a100())


def step(model: StepModel, decodes: int, prompt_tokens: int, context: int) -> float:
    rows = decodes + 1
    work = Features(decodes + prompt_tokens, rows, rows, decodes * context, prompt_tokens * context / 2)
    return model.seconds(work)


def factor(model: StepModel) -> float:
    """How many times as long a machine's step is as the A100's, of an eighth of the tokens."""
    return step(model, 8, 64, 1200 // SHRINK) / step(a100(), 64, 512, 1200)


def requests(kind: Kind, trace: Sequence[Entry], window: int, rate: float) -> list[Request]:
    """One window of the trace, its arrivals stretched to a rate."""
    first = window * (len(trace) // WINDOWS)
    part, rng = trace[first : first + kind.requests], random.Random(window)
    pace = len(part) / rate / (part[-1].arrival - part[0].arrival)
    return [
        Request(
            request_id=str(index),
            prompt_token_ids=prompt(rng, max(1, min(one.prompt_tokens // kind.shrink, kind.longest)), kind.vocabulary),
            params=SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True),
            forced_output_tokens=max(2, one.output_tokens // kind.shrink),
            arrival=(one.arrival - part[0].arrival) * pace,
            slo=SLO(kind.factor * TTFT, tpot=kind.factor * rng.choice(TPOTS)),
        )
        for index, one in enumerate(part)
    ]


def scheduling(kind: Kind, strategy: str, policy: str) -> SchedulingSettings:
    """Adaptive batching holds the shorter target; slack has those of the requests."""
    more = {"itl_target": kind.factor * TPOTS[0]} if strategy == "adaptive" else {}
    return SchedulingSettings.of(strategy=strategy, policy=policy, **more)


def serve(kind: Kind, trace: Sequence[Entry], strategy: str, policy: str, rate: float, window: int) -> Found:
    loop = kind.open(scheduling(kind, strategy, policy))
    run = drive(loop, requests(kind, trace, window, rate))
    loop.close()
    return judged(run)


def judged(run: Run) -> Found:
    first, pace, e2e = [], [], []
    for one in run.outcomes:
        times, slo = one.token_times, one.request.slo
        assert slo.ttft is not None and slo.tpot is not None
        first.append(times[0] - one.request.arrival <= slo.ttft)
        pace.append((times[-1] - times[0]) / (len(times) - 1) <= slo.tpot)
        e2e.append(times[-1] - one.request.arrival)
    met = [a and b for a, b in zip(first, pace, strict=True)]
    tails = [percentiles(values).p99 for values in (run.ttfts(), e2e, run.gaps())]
    ttft, end, gap = (0.0 if one is None else one for one in tails)
    mean = statistics.mean
    return Found(mean(met), mean(first), mean(pace), ttft, end, gap, run.output_tokens_per_s)


def load_held(rates: Sequence[float], attained: Sequence[float]) -> float:
    """The highest rate up to which the attainment is never below ATTAINMENT, between two of the grid on a line."""
    if attained[0] < ATTAINMENT:
        return rates[0] * attained[0] / ATTAINMENT
    for (low, above), (high, below) in pairwise(zip(rates, attained, strict=True)):
        if below < ATTAINMENT:
            return low + (high - low) * (above - ATTAINMENT) / (above - below)
    return rates[-1]


def kinds() -> list[Kind]:
    scale = factor(COST)
    name = f"virtual, 0.5B: lengths / {SHRINK}, times × {scale:.1f}"
    slower = [1.25 + 0.25 * index for index in range(8)]
    faster = [4.5 + 0.5 * index for index in range(7)]
    return [
        Kind(name, virtual_engine, VOCABULARY, scale, SHRINK, 900, 300, slower, POLICIES),
        Kind("simulated, llama-3-8b on an A100", gpu_engine, VOCABULARY, 1.0, 1, 7000, 250, faster, ("fcfs",)),
    ]


Runs = dict[tuple[str, str], list[list[Found]]]  # by policy and strategy: of each rate, of each window


def measured(kind: Kind, trace: Sequence[Entry], workers: int) -> Runs:
    ways = [(policy, strategy) for policy in kind.policies for strategy in STRATEGIES]
    jobs = [(way, rate, window) for way in ways for rate in kind.rates for window in range(WINDOWS)]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        done = list(pool.map(partial(_job, kind, trace), jobs))
    found: Runs = {way: [[] for _ in kind.rates] for way in ways}
    for (way, rate, _), one in zip(jobs, done, strict=True):
        found[way][kind.rates.index(rate)].append(one)
    return found


def _job(kind: Kind, trace: Sequence[Entry], job: tuple[tuple[str, str], float, int]) -> Found:
    (policy, strategy), rate, window = job
    return serve(kind, trace, strategy, policy, rate, window)


def loads(kind: Kind, runs: Runs) -> dict[tuple[str, str], list[float]]:
    """The load that each window holds."""
    return {
        way: [load_held(kind.rates, [at_rate[window].attainment for at_rate in found]) for window in range(WINDOWS)]
        for way, found in runs.items()
    }


def load_table(kind: Kind, runs: Runs) -> str:
    held = loads(kind, runs)
    rows = []
    for (policy, strategy), values in held.items():
        ratios = [over(values, held[policy, other]) for other in ("chunked", "adaptive")]
        first = over(values, held["fcfs", "chunked"])
        rows.append([policy, strategy, _estimated(estimate(values)), *ratios, first])
    head = ["policy", "strategy", "requests/s held", "× chunked", "× adaptive", "× chunked under fcfs"]
    return table(head, rows)


def over(values: Sequence[float], others: Sequence[float]) -> str:
    found = paired_ratio(values, others)
    return "" if found is None else _estimated(found)


def _estimated(found: Estimate) -> str:
    if found.low is None or found.high is None or found.low == found.high:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def attainment_table(kind: Kind, runs: Runs) -> str:
    """Means over the windows."""
    rows = [
        [policy, strategy, *(f"{statistics.mean(one.attainment for one in at_rate):.1%}" for at_rate in found)]
        for (policy, strategy), found in runs.items()
    ]
    return table(["policy", "strategy", *(f"{rate:g}/s" for rate in kind.rates)], rows)


def tail_table(kind: Kind, runs: Runs) -> str:
    """Beside attainment, at the load that chunked holds under fcfs and at a fifth more."""
    held = statistics.mean(loads(kind, runs)["fcfs", "chunked"])
    rows = []
    for wanted in (held, 1.2 * held):
        index = min(range(len(kind.rates)), key=lambda index: abs(kind.rates[index] - wanted))
        for (policy, strategy), found in runs.items():
            cells = [statistics.mean(getattr(one, name) for one in found[index]) for name in TAILS]
            first, pace, ttft, e2e, gap, rate = cells
            row = [f"{kind.rates[index]:g}", policy, strategy, f"{first:.1%}", f"{pace:.1%}"]
            rows.append([*row, f"{ttft:.2f}", f"{e2e:.1f}", f"{gap * 1e3:.0f}", f"{rate:,.0f}"])
    head = ["requests/s", "policy", "strategy", "TTFT met", "TPOT met", "TTFT p99, s", "E2E p99, s", "ITL p99, ms"]
    return table([*head, "output tokens/s"], rows)


TAILS = ("first", "pace", "ttft", "e2e", "gap", "tokens_per_s")


# -- the real engine --------------------------------------------------------------------------------------------------

REAL_LOADS = (0.6, 0.8, 1.0, 1.2)  # of capacity
REAL_REQUESTS = 144


def real(trace: Sequence[Entry], rounds: int) -> str:
    """Capacity and step times are measured before each round, by requests that all wait from the start."""
    model = Model("qwen", num_blocks=4096, max_model_len=2048)
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, max_model_len=2048, num_blocks=4096)
    open_engine = partial(model.loop, settings)
    found: dict[tuple[float, str], list[Found]] = {(share, name): [] for share in REAL_LOADS for name in STRATEGIES}
    for window in range(rounds):
        kind = Kind(model.name, open_engine, model.vocab_size, 1.0, SHRINK, 900, REAL_REQUESTS, (), ())
        rate, seconds = _probe(kind, trace, window)
        kind = replace(kind, factor=seconds / step(a100(), 64, 512, 1200))
        for share in REAL_LOADS:
            for name in STRATEGIES if window % 2 == 0 else reversed(STRATEGIES):
                found[share, name].append(serve(kind, trace, name, "fcfs", share * rate, window))
                log_line(f"round {window}, {share:.0%} of {rate:.2f}/s, {name}: {found[share, name][-1]}")
    rows = []
    for (share, name), runs in found.items():
        cells = [statistics.mean(getattr(one, field) for one in runs) for field in ("attainment", *TAILS)]
        attained, first, pace, ttft, e2e, gap, tokens = cells
        each = ", ".join(f"{one.attainment:.0%}" for one in runs)
        row = [f"{share:.0%}", name, f"{attained:.1%} ({each})", f"{first:.1%}", f"{pace:.1%}"]
        rows.append([*row, f"{ttft:.2f}", f"{e2e:.1f}", f"{gap * 1e3:.0f}", f"{tokens:,.0f}"])
    head = ["of capacity", "strategy", "attainment (rounds)", "TTFT met", "TPOT met", "TTFT p99, s", "E2E p99, s"]
    held = {name: [real_load(found, name, window) for window in range(rounds)] for name in STRATEGIES}
    loads = [
        [name, _estimated(estimate(held[name])), over(held[name], held["chunked"]), over(held[name], held["adaptive"])]
        for name in STRATEGIES
    ]
    return "\n\n".join(
        [
            f"Qwen2.5-0.5B's shape, first come, first served; {REAL_REQUESTS} requests a run, of another window of the "
            "trace in each round, the strategies in turn. Capacity is the rate at which first tokens come while "
            "requests wait, measured before each round, as are the step times by which targets are scaled. Held is "
            "the load up to which 95 % of the requests meet theirs, on a line between the loads; below the first "
            "load in proportion to what was met there.",
            table(["strategy", "load held, of capacity", "× chunked", "× adaptive"], loads),
            table([*head, "ITL p99, ms", "output tokens/s"], rows),
        ]
    )


def real_load(found: dict[tuple[float, str], list[Found]], name: str, window: int) -> float:
    return load_held(REAL_LOADS, [found[share, name][window].attainment for share in REAL_LOADS])


def _probe(kind: Kind, trace: Sequence[Entry], window: int) -> tuple[float, float]:
    """Requests per second while requests wait, and the time of a step of 8 decodes and 64 prompt tokens."""
    loop = kind.open(SchedulingSettings())
    run = drive(loop, [structs.replace(one, arrival=0.0) for one in requests(kind, trace, window, 1.0)])
    loop.close()
    firsts = sorted(one.token_times[0] for one in run.outcomes)
    context = 1200 // SHRINK
    work = Features(72, 9, 9, 8 * context, 32 * context)
    return (len(firsts) - 1) / (firsts[-1] - firsts[0]), loop.latency.seconds(work)


def section(arguments: argparse.Namespace) -> str:
    trace = load(arguments.trace).entries
    parts = [
        f"Azure's conversation trace, {WINDOWS} windows. A request meets its targets with its first token within 1 s "
        "and a mean time per further token of 60 or 200 ms, half of the requests each; on the 0.5B shape these times "
        "are scaled as said, and lengths divided. Held is the load up to which 95 % of the requests meet theirs, on a "
        "line between the loads of the grid, and at most the last of these; in brackets 95 % intervals over the "
        "windows, ratios paired by window. "
        "Adaptive batching holds the shorter target for all."
    ]
    for kind in kinds():
        runs = measured(kind, trace, arguments.workers)
        for text in (load_table, attainment_table, tail_table):
            parts.append(text(kind, runs))
        parts[-3] = f"**{kind.name}.**\n\n{parts[-3]}"
        parts[-2] = f"Requests that meet all their targets, by load:\n\n{parts[-2]}"
        parts[-1] = f"What attainment does not show:\n\n{parts[-1]}"
        log_line("\n\n".join(parts[-3:]))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="processes that simulate")
    parser.add_argument("--real", choices=("0.5b",), help="on a real engine instead")
    parser.add_argument("--rounds", type=int, default=3, help="on a real engine")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.real:
        subject, title = "slack real", "Slack batching on a real engine"
        command = f"python -m benchmarks.slack TRACE --real {arguments.real} --rounds {arguments.rounds}"
        body = real(load(arguments.trace).entries, arguments.rounds)
    else:
        subject, title = "slack", "Slack batching beside chunked and adaptive"
        command, body = "python -m benchmarks.slack TRACE", section(arguments)
    print(body)
    if arguments.write:
        write_section(subject, title, command, body)


if __name__ == "__main__":
    main()
