"""Measure what a decode step loses when another process takes a core, and when there are more threads than cores.

The neighbour does nothing but count, on one core that both share: the system gives each half of it, so that at best
(cores - 1/2) / cores of the speed is left. An engine whose threads wait for each other at every kernel would fall to
half or far below, and one whose threads spin while they wait would take from itself what the neighbour leaves. Alone
and beside the neighbour by turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kernel_bodies import BLOCK
from benchmarks.rates import timed
from benchmarks.results import table, write_section
from benchmarks.roofline import Step
from benchmarks.shapes import SHAPES, write_config
from inflight.execution.backends.native import NativeBackend
from inflight.models.registry import read_folder

BATCHES, CONTEXT = (1, 16), 128
_SECONDS = 1.5  # of steps in each turn
_SETTLE = 0.2  # until a neighbour counts, or is gone


@contextmanager
def neighbour(core: int) -> Iterator[None]:
    """A process that keeps `core` busy."""
    busy = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
    try:
        time.sleep(_SETTLE)
        yield
    finally:
        busy.kill()
        busy.wait()


def steps_per_s(step: Step, batch: int) -> float:
    body = step.of(batch, CONTEXT)
    body()
    end, seconds = time.perf_counter() + _SECONDS, []
    while time.perf_counter() < end:
        seconds.append(timed(body))
    return 1 / statistics.fmean(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=list(SHAPES), default="qwen2.5-0.5b", help="shape, of random weights")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        config = read_folder(write_config(Path(folder) / "shape", SHAPES[arguments.model]), to_run=True)
    blocks = max(BATCHES) * -(-CONTEXT // BLOCK)
    rows = []
    for threads in (1, len(cores), 2 * len(cores)):
        step = Step(config, NativeBackend("bfloat16", threads), "none", CONTEXT, blocks)
        for batch in BATCHES:
            alone, beside = [], []
            for _ in range(arguments.repeats):
                alone.append(steps_per_s(step, batch))
                with neighbour(cores[-1]):
                    beside.append(steps_per_s(step, batch))
            kept = [with_it / without for with_it, without in zip(beside, alone, strict=True)]
            shown = f"{statistics.median(kept):.2f} ({min(kept):.2f} to {max(kept):.2f})"
            speeds = [f"{batch * statistics.median(one):.0f}" for one in (alone, beside)]
            rows.append([threads, batch, *speeds, shown])
            print(*rows[-1], flush=True)
    best = (len(cores) - 0.5) / len(cores)
    body = (
        f"{arguments.model}'s shape in bf16 at {CONTEXT} tokens, {len(cores)} cores. A neighbour that keeps one core "
        f"busy leaves {best:.2f} of the cores; medians over {arguments.repeats} turns.\n\n"
    ) + table(["threads", "rows", "alone, tokens/s", "beside a neighbour, tokens/s", "kept"], rows)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.neighbour --model {arguments.model} --repeats {arguments.repeats}"
        write_section("neighbour", "Beside a busy neighbour", command, body)


if __name__ == "__main__":
    main()
