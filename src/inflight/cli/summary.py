"""The summary of a run on standard error: throughput and latency side by side. Knows how figures are shown."""

from __future__ import annotations

import sys
from dataclasses import asdict

from inflight.core.estimation.output_length import PredictionError
from inflight.counted import counted
from inflight.metrics.definitions import Percentiles
from inflight.metrics.summary import Summary


def print_summary(summary: Summary, preemptions: int) -> None:
    """Throughput and latency side by side, on standard error."""
    failed = f", {summary.failed} failed" if summary.failed else ""
    preempted = f", {preemptions} preemptions" if preemptions else ""
    answered = counted(summary.requests, "request")
    print(
        f"{answered} answered{failed} in {summary.wall_seconds:.2f} s{preempted}\n"
        f"throughput   {summary.requests_per_s:,.2f} requests/s   {summary.output_tokens_per_s:,.1f} output tokens/s   "
        f"{summary.input_tokens_per_s:,.1f} input tokens/s "
        f"({summary.cached_tokens:,} of {summary.prompt_tokens:,} cached)",
        file=sys.stderr,
    )
    if not summary.requests:
        return
    if summary.saturated:
        print(
            f"saturated    {summary.offered_per_s:,.2f} requests/s were offered, {summary.requests_per_s:,.2f} is what "
            "was served, and latency grew to the end: percentiles would tell the length of the run",
            file=sys.stderr,
        )
        return
    rows = (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("E2E", summary.e2e))
    print(f"latency      {'mean':>10} {'p50':>10} {'p95':>10} {'p99':>10}  ms", file=sys.stderr)
    for name, figures in rows:
        print(f"  {name:<10} {milliseconds(figures)}  over {counted(figures.samples, 'request')}", file=sys.stderr)


def print_predictions(predictor: str, error: PredictionError) -> None:
    """How far off the predicted output lengths were, on standard error."""
    print(
        f"predictor    {predictor}: output lengths off by {error.relative_error:.0%} on average, "
        f"{error.within_twice:.0%} within twice, bias {error.bias:+.0%}, over {error.samples:,} samples",
        file=sys.stderr,
    )


def milliseconds(figures: Percentiles) -> str:
    values = asdict(figures)
    return " ".join(
        f"{'-' if values[name] is None else format(values[name] * 1e3, ',.1f'):>10}"
        for name in ("mean", "p50", "p95", "p99")
    )
