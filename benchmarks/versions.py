"""Two checkouts side by side: what a step costs in one and in the other, as users of `LLM` see it.

    python -m benchmarks.versions --other /path/to/checkout/.venv/bin/python [--repeats N] [--write]

Each checkout runs in a process of its own, under the Python that has it installed, and does the same work through the
public Python API, so that both may be of any age. The processes take turns at every measurement (A B B A …); a ratio is
taken within a turn; reported is the median of the turns, with the interval of that median.

Measured: decode steps of 1, 4, 8 and 32 rows and a prompt of 512 tokens of Qwen2.5-0.5B's shape with random weights, in
bf16, int8 and int4; and decode steps of 1 and 32 rows of the built-in model, where arithmetic weighs least. Both take
the instruction set that INFLIGHT_ISA names, or the best that this machine has.
Steps of 1 row are timed beside a thread of the same process that runs Python all the while, too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import table, write_section
from benchmarks.shapes import QWEN25_05B, write_config
from inflight.metrics.confidence import quantile_interval

WORKER = Path(__file__).with_name("version_worker.py")
BUILT_IN = "built-in"
DECODES = (1, 4, 8, 32)
PROMPT = 512


@dataclass(frozen=True)
class Task:
    """`steps` decode steps of so many rows, or (0 steps) one prompt of so many tokens."""

    name: str
    amount: int
    steps: int
    busy: bool = False  # beside a thread that runs Python


QWEN_TASKS = (
    *(Task(f"{rows} rows", rows, 24) for rows in DECODES),
    Task(f"prompt of {PROMPT} tokens", PROMPT, 0),
    Task("1 row beside a busy thread", 1, 24, busy=True),
)
BUILT_IN_TASKS = (
    Task("1 row", 1, 200),
    Task("32 rows", 32, 200),
    Task("1 row beside a busy thread", 1, 60, busy=True),
)


class Worker:
    """A checkout with one model loaded."""

    def __init__(self, python: str, model: str, quantization: str):
        command = [python, str(WORKER), model, quantization]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, task: Task) -> float:
        """Return the seconds of one step of a task."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(task.amount, task.steps, int(task.busy), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"A worker ended with status {self._process.wait()}; see its error above.")
        return float(answer)

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def both(pythons: tuple[str, str], model: str, quantization: str) -> Iterator[tuple[Worker, Worker]]:
    with ExitStack() as stack:
        first, second = (Worker(python, model, quantization) for python in pythons)
        for worker in (first, second):
            stack.callback(worker.close)
        yield first, second


def compare(workers: tuple[Worker, Worker], tasks: tuple[Task, ...], repeats: int, title: str) -> list[list[str]]:
    rows = []
    for task in tasks:
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(repeats + 1):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds = workers[which].seconds(task)
                if turn:  # the first warms up
                    times[which].append(seconds)
        ratios = sorted(here / there for here, there in zip(*times, strict=True))
        interval = quantile_interval(ratios, 0.5)
        least = [min(one) * 1e3 for one in times]
        spread = "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
        median = f"{statistics.median(ratios):.3f}"
        rows.append([title, task.name, f"{least[0]:.3f}", f"{least[1]:.3f}", median, spread])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the steps of two checkouts in turns.")
    parser.add_argument("--other", required=True, help="the Python that has the other checkout installed")
    parser.add_argument("--name", default="another checkout", help="what the other is called, its commit for example")
    parser.add_argument("--repeats", type=int, default=12, help="turns of each measurement (default 12)")
    parser.add_argument("--only", choices=["built-in", "bf16", "int8", "int4"], help="one part alone")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    pythons = (sys.executable, arguments.other)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), QWEN25_05B)
        for title, model, quantization, tasks in (
            ("built-in", BUILT_IN, "none", BUILT_IN_TASKS),
            ("bf16", folder, "none", QWEN_TASKS),
            ("int8", folder, "int8", QWEN_TASKS),
            ("int4", folder, "int4", QWEN_TASKS),
        ):
            if arguments.only in (None, title):
                with both(pythons, model, quantization) as workers:
                    rows += compare(workers, tasks, arguments.repeats, title)
    body = table(["weights", "step", "here, ms", "other, ms", "ratio", "95 %"], rows)
    print(body)
    if arguments.write:
        asked = f"--name {arguments.name} --repeats {arguments.repeats} --write"
        command = f"python -m benchmarks.versions --other PYTHON {asked}"
        section, title = "versions", f"Steps beside those of {arguments.name}"
        if isa := os.environ.get("INFLIGHT_ISA"):
            section, title, command = f"versions {isa}", f"{title}, with {isa}", f"INFLIGHT_ISA={isa} {command}"
        write_section(section, title, command, body)


if __name__ == "__main__":
    main()
