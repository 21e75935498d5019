"""Share between programs that compare settings: their options, medians with ranges, and where the table goes.

Compared settings run in turn (A B A B) in one process, and a ratio is taken within a repeat, so that a machine whose
speed drifts blurs it little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence

from benchmarks.results import write_section
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, Window, summarize

WARM_UP = 0.1  # of the requests


def options(description: str | None, repeats: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"rounds through all settings (default {repeats})")
    parser.add_argument(
        "--model",
        choices=["qwen", "built-in", "tiny"],
        default="qwen",
        help="Qwen2.5-0.5B's shape with random weights (the default), the model that comes with inflight, or a tiny "
        "random one, to try the program",
    )
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    return parser


def spread(values: Iterable[float], digits: int = 2, unit: str = "") -> str:
    """Median (least to greatest); the value alone where there is one."""
    ordered = sorted(values)
    text = f"{statistics.median(ordered):,.{digits}f}{unit}"
    return text if len(ordered) == 1 else f"{text} ({ordered[0]:,.{digits}f} to {ordered[-1]:,.{digits}f})"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratio of each repeat."""
    return [a / b for a, b in zip(above, below, strict=True)]


def log_line(sentence: str) -> None:
    """Write a line of progress to standard error, beside the data."""
    print(sentence, file=sys.stderr, flush=True)


def publish(program: str, title: str, body: str, write: bool, variant: str = "") -> None:
    """variant: of the same program's figures, which stand in a section of their own."""
    print(body)
    if write:
        given = [argument for argument in sys.argv[1:] if argument != "--write"]
        write_section(
            f"{program} {variant}".rstrip(), title, " ".join(["python -m", f"benchmarks.{program}", *given]), body
        )


def steady(observations: Sequence[Observation]) -> Summary:
    """Return the requests after the first tenth, which warms up, until the last was sent: what comes after is a drain.
    Of requests that all come at once, the whole run."""
    times = sorted(one.intended for one in observations)
    start = times[int(WARM_UP * len(times))] if times else 0.0
    return summarize(observations, Window(start, times[-1]) if times and times[-1] > start else None)
