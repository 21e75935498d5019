"""Paged KV memory against reservation, at equal memory: how many requests run at once, and how much memory is wasted.

Memory is the bottleneck, rows are not: there are blocks for a few sequences of the model's length. No answer's length
is known in advance; `max_tokens` is a class cap of 512 on all of them. Twice: on a simulated device in virtual time,
with enough requests for a steady state, and on the real engine, smaller, where what more concurrency brings shows too.
Reservations never grow, so they are spared the watermark that keeps paged sequences from being preempted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.comparison import log_line, options, publish, ratios, spread
from benchmarks.drive import Observer, Run, drive
from benchmarks.engines import Model, simulated_loop
from benchmarks.results import table
from benchmarks.virtual import COST
from benchmarks.workloads import heavy_tailed
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.metrics.definitions import percentiles

ALLOCATIONS = ("paged", "reserve-request", "reserve-max")
ROWS = 128
MAX_TOKENS = 512
MODEL_LEN = 2048
BLOCK = 16
VOCAB = 32_000  # of the simulated device


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. running: mean over the steps after which requests waited. ttft: mean, seconds."""

    running: float
    max_running: int
    kv_waste: float
    preemptions: int
    output_tokens_per_s: float
    ttft: float


def settings(allocation: str, sequences: int) -> EngineSettings:
    """Memory for so many sequences of the model's length."""
    return EngineSettings(
        max_num_seqs=ROWS,
        max_model_len=MODEL_LEN,
        num_blocks=sequences * MODEL_LEN // BLOCK,
        block_size=BLOCK,
        watermark=EngineSettings().watermark if allocation == "paged" else 0.0,
    )


def on_simulated(allocation: str, sequences: int, requests: int, seed: int) -> Figures:
    engine, observer = settings(allocation, sequences), Observer()
    assert engine.num_blocks is not None
    capacity = Capacity(engine.num_blocks, BLOCK, ROWS, MODEL_LEN, VOCAB)
    loop = simulated_loop(capacity, engine, SchedulingSettings.of(kv_allocation=allocation), COST, observer)
    return _figures(drive(loop, _requests(requests, VOCAB, seed), observer.after), observer)


def on_engine(model: Model, allocation: str, sequences: int, requests: int, seed: int) -> Figures:
    observer = Observer()
    loop = model.loop(settings(allocation, sequences), SchedulingSettings.of(kv_allocation=allocation), observer)
    run = drive(loop, _requests(requests, model.vocab_size, seed), observer.after)
    figures = _figures(run, observer)
    log_line(f"{allocation}: {run.seconds:.0f} s, {figures}")
    return figures


def _requests(number: int, vocab_size: int, seed: int) -> list[Request]:
    return heavy_tailed(number, vocab_size, seed, max_tokens=MAX_TOKENS)


def _figures(run: Run, observer: Observer) -> Figures:
    ttft = percentiles(run.ttfts()).mean
    assert ttft is not None
    return Figures(
        statistics.mean(observer.running_at_most),
        max(observer.running),
        observer.kv_waste,
        observer.preemptions,
        run.output_tokens_per_s,
        ttft,
    )


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--sequences", type=int, default=8, help="simulated device: memory for so many full sequences")
    parser.add_argument("--requests", type=int, default=800, help="simulated device: requests, all at once")
    parser.add_argument("--real-sequences", type=int, default=2, help="real engine: memory for so many full sequences")
    parser.add_argument("--real-requests", type=int, default=64, help="real engine: requests, all at once")
    arguments = parser.parse_args()
    blocks = arguments.real_sequences * MODEL_LEN // BLOCK
    model = Model(arguments.model, blocks, MODEL_LEN)
    simulated: dict[str, list[Figures]] = {name: [] for name in ALLOCATIONS}
    real: dict[str, list[Figures]] = {name: [] for name in ALLOCATIONS}
    for seed in range(arguments.repeats):
        for name in ALLOCATIONS:
            simulated[name].append(on_simulated(name, arguments.sequences, arguments.requests, seed))
            real[name].append(on_engine(model, name, arguments.real_sequences, arguments.real_requests, seed))
    sizes = (
        f"Null executor: memory for {arguments.sequences} sequences of {MODEL_LEN} tokens, {arguments.requests} "
        f"requests. Real engine ({model.name}): for {arguments.real_sequences}, {arguments.real_requests} requests."
    )
    publish("kv_allocation", "KV memory: paged against reservation", report(sizes, simulated, real), arguments.write)


def report(sizes: str, simulated: dict[str, list[Figures]], real: dict[str, list[Figures]]) -> str:
    asked = [
        [f"concurrent requests of paged over {name}", *(_more_running(runs, name) for runs in (simulated, real)), least]
        for name, least in (("reserve-max", "≥ 3×"), ("reserve-request", "≥ 1.7×"))
    ]
    waste = [spread([100 * one.kv_waste for one in runs["paged"]], 1, " %") for runs in (simulated, real)]
    asked.append([f"KV waste of paged, blocks of {BLOCK}", *waste, "< 6 %"])
    head = ["", "simulated device", "real engine", "asked"]
    return "\n\n".join(
        [
            f"{sizes} Equal memory for all three, {ROWS} rows, max_tokens {MAX_TOKENS}, prompts lognormal (p50 40, p99 "
            "400), outputs lognormal (p50 60, p99 500). Concurrency is the mean of running requests over the steps in "
            "which others waited. Medians over the repeats, least and greatest in brackets.",
            table(head, asked),
            "Null executor, virtual time:",
            _table(simulated, real=False),
            "Real engine:",
            _table(real, real=True),
        ]
    )


def _more_running(runs: dict[str, list[Figures]], other: str) -> str:
    return spread(ratios([one.running for one in runs["paged"]], [one.running for one in runs[other]]), unit="×")


def _table(runs: dict[str, list[Figures]], real: bool) -> str:
    head = ["allocation", "mean running", "most running", "KV waste", "preemptions"]
    rows = [
        [
            name,
            spread([one.running for one in figures], 1),
            spread([one.max_running for one in figures], 0),
            spread([100 * one.kv_waste for one in figures], 1, " %"),
            spread([one.preemptions for one in figures], 0),
            *([spread([one.output_tokens_per_s for one in figures], 0)] if real else []),
            *([spread([one.ttft for one in figures], 1)] if real else []),
        ]
        for name, figures in runs.items()
    ]
    return table(head + (["output tokens/s", "TTFT mean, s"] if real else []), rows)


if __name__ == "__main__":
    main()
