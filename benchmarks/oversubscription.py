"""Throughput where sequences need more KV memory than there is: paged, with preemption, beside reservation.

On a simulated device in virtual time. Demand is what 32 sequences of the mean length need, over the memory.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.comparison import publish
from benchmarks.drive import Observer, drive
from benchmarks.results import table
from benchmarks.virtual import ROWS, VOCABULARY, virtual_engine
from benchmarks.workloads import heavy_tailed
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request

MAX_TOKENS = 512
BLOCK = 16
DEMANDS = (0.5, 1.0, 1.5, 2.0, 3.0)


def throughput(requests: list[Request], allocation: str, demand: float) -> tuple[float, int, float]:
    """Return output tokens/s, preemptions and the mean number of running sequences."""
    lengths = [len(one.prompt_token_ids) + (one.forced_output_tokens or 0) for one in requests]
    blocks = int(ROWS * statistics.mean(lengths) / BLOCK / demand)
    observer = Observer()
    loop = virtual_engine(SchedulingSettings.of(kv_allocation=allocation), observer=observer, num_blocks=blocks)
    run = drive(loop, requests, observer.after)
    return run.output_tokens_per_s, observer.preemptions, statistics.mean(observer.running)


def requests(number: int, seed: int = 0) -> list[Request]:
    return heavy_tailed(number, VOCABULARY, seed, max_tokens=MAX_TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="all at once")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    asked, rows, roomy = requests(arguments.requests), [], 0.0
    for demand in DEMANDS:
        paged, preemptions, running = throughput(asked, "paged", demand)
        reserved, _, of_reserved = throughput(asked, "reserve-request", demand)
        roomy = roomy or paged
        figures = (f"{paged:.0f}", f"{paged / roomy:.0%}", preemptions, f"{running:.1f}", f"{reserved:.0f}")
        rows.append([f"{demand:g}", *figures, f"{of_reserved:.1f}", f"{paged / reserved:.2f}×"])
    head = ["demand over memory", "paged, output tokens/s", "of that with room", "preemptions", "running"]
    head += ["reserve-request, output tokens/s", "running", "paged over reserve-request"]
    text = (
        f"{arguments.requests} requests at once, {ROWS} rows, max_tokens {MAX_TOKENS}; prompts and answers as in the "
        "section on reservation, in virtual time. Preempted sequences are computed again: there is no host memory to "
        "swap to. Demand is what 32 sequences of the mean length need."
    )
    publish("oversubscription", "KV memory that is too small", f"{text}\n\n{table(head, rows)}", arguments.write)


if __name__ == "__main__":
    main()
