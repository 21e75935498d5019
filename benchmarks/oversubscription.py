"""Demand for KV memory from half of what there is to four times: throughput, preemptions and tails.

On a simulated device in virtual time. Demand is what 32 sequences of the mean length need, over the memory. Compared
are rules by which a sequence joins the batch: blocks for its prompt above a watermark (`paged`), for the longest answer
that it allows (`reserve-request`), and below the batch's expected peak by predicted lengths (`expected-peak`), by
quantiles or as they will be (`oracle`).

    python -m benchmarks.oversubscription [--real ROUNDS] [--write]

With --real demand is twice the memory, on the real engine with Qwen2.5-0.5B's shape, every rule in turn in each round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.comparison import log_line, publish, spread
from benchmarks.drive import Observer, Run, drive
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.virtual import BUDGET, ROWS, VOCABULARY, virtual_engine
from benchmarks.workloads import heavy_tailed
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import percentiles, tpot

MAX_TOKENS = 512
BLOCK = 16
DEMANDS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
RULES: dict[str, dict[str, str]] = {
    "paged": {"kv_allocation": "paged"},
    "reserve-request": {"kv_allocation": "reserve-request"},
    "expected-peak, quantiles": {"kv_allocation": "expected-peak"},
    "expected-peak, oracle": {"kv_allocation": "expected-peak", "predictor": "oracle"},
}


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one run. running: mean number of sequences."""

    run: Run
    preemptions: int
    recomputed_tokens: int
    running: float

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.run.output_tokens_per_s

    def tpot_p99(self) -> float:
        """Milliseconds from each output token to the next, the mean of an answer."""
        times = (one.token_times for one in self.run.outcomes if one.token_times)
        return 1e3 * _p99(each for one in times if (each := tpot(one[0], one[-1], len(one))) is not None)

    def e2e_p99(self) -> float:
        """Seconds from arrival to end."""
        return _p99(one.timings.total_ms / 1e3 for one in self.run.outcomes if one.timings is not None)


def _p99(values: Iterable[float]) -> float:
    found = percentiles(values).p99
    assert found is not None
    return found


Open = Callable[[SchedulingSettings, Observer, int], EngineLoop]  # of so many blocks


def virtual(scheduling: SchedulingSettings, observer: Observer, blocks: int) -> EngineLoop:
    return virtual_engine(scheduling, observer=observer, num_blocks=blocks)


def serve(requests: list[Request], rule: str, demand: float, open_engine: Open = virtual) -> Found:
    """Serve requests under one of RULES."""
    lengths = [len(one.prompt_token_ids) + (one.forced_output_tokens or 0) for one in requests]
    observer = Observer()
    blocks = int(ROWS * statistics.mean(lengths) / BLOCK / demand)
    loop = open_engine(SchedulingSettings.of(**RULES[rule]), observer, blocks)
    run = drive(loop, requests, observer.after)
    loop.close()
    return Found(run, observer.preemptions, loop.stats().recomputed_tokens, statistics.mean(observer.running))


def requests(number: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[Request]:
    return heavy_tailed(number, vocabulary, seed, max_tokens=MAX_TOKENS)


def lines(asked: list[Request], demand: float) -> list[list[object]]:
    """Return a line for each rule at a demand."""
    found = {rule: serve(asked, rule, demand) for rule in RULES}
    best = max(one.throughput for one in found.values())
    return [
        [
            f"{demand:g}",
            rule,
            f"{one.throughput:.0f}",
            f"{one.throughput / best:.2f}",
            one.preemptions,
            f"{one.recomputed_tokens:,}",
            f"{one.running:.1f}",
            f"{one.tpot_p99():.0f}",
            f"{one.e2e_p99():.1f}",
        ]
        for rule, one in found.items()
    ]


HEAD = ["demand over memory", "rule", "output tokens/s", "of the best", "preemptions", "recomputed tokens", "running"]
HEAD += ["TPOT p99, ms", "E2E p99, s"]
REAL_TITLE = "KV memory that is too small, on a real engine"


REAL_REQUESTS, REAL_DEMAND, REAL_LEN = 64, 2.0, 2048


def real(rounds: int) -> str:
    """Serve every rule in turn on the real engine; return the table."""
    model = Model("qwen", max_model_len=REAL_LEN)

    def open_engine(scheduling: SchedulingSettings, observer: Observer, blocks: int) -> EngineLoop:
        settings = EngineSettings(
            max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, max_model_len=REAL_LEN, num_blocks=blocks
        )
        return model.loop(settings, scheduling, observer)

    found: dict[str, list[Found]] = {rule: [] for rule in RULES}
    for index in range(rounds):
        asked = requests(REAL_REQUESTS, index, model.vocab_size)
        for rule in RULES if index % 2 == 0 else reversed(RULES):
            found[rule].append(one := serve(asked, rule, REAL_DEMAND, open_engine))
            log_line(f"round {index}, {rule}: {one.throughput:.1f} tokens/s, {one.preemptions} preemptions")
    best = [max(each.throughput for each in runs) for runs in zip(*found.values(), strict=True)]
    rows = [
        [
            rule,
            spread((one.throughput for one in runs), 1),
            spread((one.throughput / top for one, top in zip(runs, best, strict=True)), 2),
            spread((float(one.preemptions) for one in runs), 0),
            f"{statistics.mean(one.recomputed_tokens for one in runs):,.0f}",
            f"{statistics.mean(one.running for one in runs):.1f}",
            f"{statistics.mean(one.tpot_p99() for one in runs):.0f}",
            f"{statistics.mean(one.e2e_p99() for one in runs):.1f}",
        ]
        for rule, runs in found.items()
    ]
    text = (
        f"Demand is {REAL_DEMAND:g} times the memory, on the real engine with Qwen2.5-0.5B's shape: {REAL_REQUESTS} "
        f"requests at once, otherwise as in virtual time; {rounds} rounds of other requests, every rule in turn in "
        "each; `of the best` is of the round's best."
    )
    return f"{text}\n\n{table(HEAD[1:], rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="all at once")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    parser.add_argument("--real", type=int, metavar="ROUNDS", help="so many rounds on the real engine instead")
    arguments = parser.parse_args()
    if arguments.real:
        publish("oversubscription", REAL_TITLE, real(arguments.real), arguments.write, "real")
        return
    asked = requests(arguments.requests)
    rows = [line for demand in DEMANDS for line in lines(asked, demand)]
    text = (
        f"{arguments.requests} requests at once, {ROWS} rows, max_tokens {MAX_TOKENS}; prompts and answers as in the "
        "section on reservation, in virtual time. Preempted sequences are computed again: there is no host memory to "
        "swap to. Demand is what 32 sequences of the mean length need. Quantiles know nothing at the start."
    )
    publish("oversubscription", "KV memory that is too small", f"{text}\n\n{table(HEAD, rows)}", arguments.write)


if __name__ == "__main__":
    main()
