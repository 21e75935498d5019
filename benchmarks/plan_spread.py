"""How much a plan depends on its seed: replicas, both ends of their interval, and the time it takes.

    python -m benchmarks.plan_spread [--only NAME …] [--seeds N] [--write]

Each question is asked with seeds that are far from each other, without trials that were run before. The spread is the
standard deviation over the seeds in percent of the mean. Of so many GPUs it is that of the requests/s that they serve.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.plan_questions import CHAT, QUESTIONS
from benchmarks.results import table, write_section

ASKED, ASKED_ENDS = 3, 5  # percent
SEED_STEP = 100  # seeds: trials of one question add a few to its seed, and would draw the requests of its neighbours
ASKED_OF: Mapping[str, str] = {
    "seventy-billion": QUESTIONS["seventy-billion"],
    "one-h100": QUESTIONS["one-h100"],
    "many-small": f"""
inflight plan --model llama-3.1-8b --hardware h100 --rate 2000 \\
    {CHAT} --slo "ttft=500(p95),tpot=30(p95)"
""",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer. low, high: ends of its interval, the fast one first; None: none. cpu: seconds of CPU time."""

    number: float
    low: float | None
    high: float | None
    cpu: float


def answered(command: str, seed: int) -> Answered:
    """Ask a question with a seed. Raises SystemExit where it fails."""
    arguments = shlex.split(command.replace("\\\n", " "))[1:]
    before = _cpu_seconds()
    with tempfile.TemporaryDirectory() as cache:
        asked = [sys.executable, "-m", "inflight", *arguments, "--json", "--seed", str(seed)]
        run = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": cache})
    if run.returncode:
        raise SystemExit(f"{command.strip()} ended with exit code {run.returncode}: {run.stderr or run.stdout}")
    found = json.loads(run.stdout)
    number, (low, high) = found["replicas"], found["replicas_interval"]
    if "--gpus" in arguments:
        number, (high, low) = found["rate"], found["rate_interval"]
    return Answered(number, low, high, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Return the CPU time of the questions that were asked so far."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def spread(values: Sequence[float | None]) -> str:
    """Return the mean and the standard deviation in percent of it; "-" where a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return "-"
    mean = statistics.fmean(known)
    return f"{shown(mean)} ± {100 * statistics.stdev(known) / mean:.1f} %"


def shown(number: float) -> str:
    """Return a number with three digits, and all of a larger whole part."""
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def row(name: str, found: Sequence[Answered]) -> list[str]:
    numbers = [one.number for one in found]
    return [
        name,
        spread(numbers),
        f"{shown(min(numbers))} to {shown(max(numbers))}",
        spread([one.low for one in found]),
        spread([one.high for one in found]),
        f"{statistics.fmean(one.cpu for one in found):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ASKED_OF, default=list(ASKED_OF), help="these questions alone")
    parser.add_argument("--seeds", type=int, default=10, help="of each question (default 10)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only:
        found = []
        for seed in range(0, SEED_STEP * arguments.seeds, SEED_STEP):
            found.append(answered(ASKED_OF[name], seed))
            print(name, seed, found[-1], file=sys.stderr, flush=True)
        rows.append(row(name, found))
    head = ["question", "answer", "least and greatest", "fast end", "slow end", "CPU seconds"]
    body = (
        f"Answers of {arguments.seeds} seeds: the mean and the standard deviation in percent of it (asked: {ASKED} of "
        f"the answer, {ASKED_ENDS} of an end). `one-h100` is in requests/s, the others in replicas.\n\n"
    ) + table(head, rows)
    print(body)
    if arguments.write:
        only = "" if arguments.only == list(ASKED_OF) else f" --only {' '.join(arguments.only)}"
        command = f"python -m benchmarks.plan_spread --seeds {arguments.seeds}{only}"
        write_section("plan_spread", "How much a plan depends on its seed", command, body)


if __name__ == "__main__":
    main()
