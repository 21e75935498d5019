"""Policies on three public traces: goodput, tails and fairness, five stretches of each trace, simulated.

Llama 3.1 8B on an H100 by its data sheet, with the real scheduler, by `inflight lab`. Each trace is offered so fast
that first come, first served falls behind its targets; all contenders have the same requests.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import table, write_section
from inflight.cli import call

MACHINE = "--model llama-3.1-8b --hardware h100"
CONTENDERS = (
    *("fcfs", "sjf", "hrrn", "deadline", "prefix", "program", "adaptive"),
    "--setting 'sjf, oracle=--policy sjf --predictor oracle'",
    "--setting 'slack=--strategy slack'",
    "--setting 'slack, deadline=--strategy slack --policy deadline'",
)


class PublicTrace(NamedTuple):
    """A trace, as it is offered. seconds: of a stretch, on the trace's clock. ttft, tpot: targets, milliseconds."""

    file: str
    title: str
    speed: float
    seconds: int
    ttft: int
    tpot: int

    def options(self, folder: str) -> str:
        return (
            f"--trace {folder}/{self.file} --trace-seconds {self.seconds} --speed {self.speed:g} "
            f"--slo ttft={self.ttft} --slo tpot={self.tpot}"
        )


TRACES = (
    PublicTrace("azure_conv.csv", "Azure, conversations", 4.5, 110, 1000, 50),
    PublicTrace("azure_code.csv", "Azure, code", 2.2, 250, 2000, 80),
    PublicTrace("mooncake_conversation_trace.jsonl", "Mooncake, conversations", 0.3, 130, 10_000, 80),
)
FIGURES = ("attainment", "ttft_p99", "tpot_p99", "e2e_p99", "e2e_mean", "fairness")
HEAD = ("policy", "goodput, requests/s", "× fcfs (95 %)", "attained", "TTFT p99, s", "TPOT p99, ms", "E2E p99, s")


def measure(trace: PublicTrace, folder: str, seeds: int) -> list[dict[str, Any]]:
    """Return the standings of `inflight lab`."""
    words = shlex.split(f"lab {' '.join(CONTENDERS)} {MACHINE} {trace.options(folder)} --seeds {seeds} --json")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert call(words) == 0
    found: list[dict[str, Any]] = json.loads(out.getvalue())["standings"]
    return found


def line(one: dict[str, Any]) -> list[str]:
    """Return the row of one contender."""
    mean = {key: value["mean"] for key, value in one["figures"].items()}
    ratio = one["ratio"]
    shown = "-"
    if ratio is not None:
        shown = f"{ratio['mean']:.2f}"
        if ratio["low"] is not None:
            shown += f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return [
        f"{one['contender']}{' **best**' if one['is_best'] else ''}",
        f"{mean['goodput']:.2f}",
        shown,
        f"{mean['attainment']:.1%}",
        f"{mean['ttft_p99']:.2f}",
        f"{mean['tpot_p99'] * 1e3:.0f}",
        f"{mean['e2e_p99']:.1f}",
        f"{mean['e2e_mean']:.1f}",
        f"{mean['fairness']:.2f}",
    ]


def report(folder: str, seeds: int) -> str:
    parts = []
    for trace in TRACES:
        rows = [line(one) for one in measure(trace, folder, seeds)]
        parts.append(
            f"### {trace.title}\n\n{trace.speed:g} times its speed, {seeds} stretches of {trace.seconds} s; a first "
            f"token within {trace.ttft:,} ms, {trace.tpot} ms a token.\n\n"
            + table((*HEAD, "E2E mean, s", "fairness"), rows)
        )
    parts.append(
        "Fairness is Jain's index of seconds per output token over requests, since these traces name no tenants. "
        "`prefix` and `program` are at home where requests share prefixes or name programs."
    )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", required=True, type=Path, help="folder of the traces")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    body = report(str(arguments.traces), arguments.seeds)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.policy_table --traces FOLDER --seeds {arguments.seeds}"
        write_section("policy_table", "Policies on public traces", command, body)


if __name__ == "__main__":
    main()
