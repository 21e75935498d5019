"""Print on standard error: lines, figures with names, and the summary of a run with throughput and latency."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from inflight.counted import counted, printable

if TYPE_CHECKING:  # `run` shows lines, and no metrics
    from inflight.core.estimation.output_length import PredictionError
    from inflight.frontend.outputs import RequestOutput
    from inflight.metrics.definitions import Percentiles
    from inflight.metrics.summary import Summary

HEAD = f"{'mean':>10} {'p50':>10} {'p95':>10} {'p99':>10}"


def show(text: str) -> None:
    """Print lines, with escapes for what would steer the terminal: servers and files name things."""
    print(printable(text, keep="\n"), file=sys.stderr)


def show_at_start(sentence: str, as_text: Callable[[], object], level: int = logging.ERROR) -> None:
    """Show a sentence of the start: as a line of JSON where a server's log is that, else as text."""
    logs = sys.modules.get("inflight.server.logs")  # loaded where a server is started
    if logs is None:
        as_text()
    else:
        logs.show(sentence, as_text, level)


def figure(name: str, text: str) -> None:
    show(f"{name:<12} {text}")


def print_summary(summary: Summary, preemptions: int) -> None:
    """Print throughput and latency."""
    failed = f", {summary.failed} failed" if summary.failed else ""
    preempted = f", {preemptions} preemptions" if preemptions else ""
    show(f"{counted(summary.requests, 'request')} answered{failed} in {summary.wall_seconds:.2f} s{preempted}")
    figure("throughput", throughput(summary, f"{summary.output_tokens_per_s:,.1f} output tokens/s   "))
    if not summary.requests:
        return
    if summary.saturated:
        figure(
            "saturated",
            f"{summary.offered_per_s:,.2f} requests/s were offered and {summary.requests_per_s:,.2f} served; latency "
            "grew to the end, so percentiles would depend on the length of the run",
        )
        return
    figure("latency", f"{HEAD}  ms")
    for name, figures in (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("E2E", summary.e2e)):
        figure(f"  {name}", f"{milliseconds(figures)}  over {counted(figures.samples, 'request')}")
    if summary.jct.samples:
        figure("  JCT", f"{milliseconds(summary.jct)}  over {counted(summary.jct.samples, 'program')}")


def throughput(summary: Summary, output: str) -> str:
    """Return the figures of throughput. output: those of output tokens."""
    return (
        f"{summary.requests_per_s:,.2f} requests/s   {output}{summary.input_tokens_per_s:,.1f} input tokens/s "
        f"({summary.cached_tokens:,} of {summary.prompt_tokens:,} cached)"
    )


def print_predictions(predictor: str, error: PredictionError) -> None:
    """Print how far off the predicted output lengths were."""
    figure(
        "predictor",
        f"{predictor}: output lengths off by {error.relative_error:.0%} on average, {error.within_twice:.0%} within "
        f"twice, bias {error.bias:+.0%}, over {error.samples:,} samples",
    )


def speed(output: RequestOutput) -> str:
    """Return how many tokens an answer has, and how fast they came; empty where nothing was timed."""
    timings = output.timings
    if timings is None or timings.ttft_ms is None:
        return ""
    tokens = sum(len(one.token_ids) for one in output.outputs)
    rate = f", then {timings.output_tokens_per_s:,.0f} tokens/s" if timings.output_tokens_per_s else ""
    return f"{counted(tokens, 'token')}, the first after {timings.ttft_ms:,.0f} ms{rate}"


def milliseconds(figures: Percentiles) -> str:
    """Return the columns of `HEAD`."""
    return " ".join(in_ms(value) for value in (figures.mean, figures.p50, figures.p95, figures.p99))


def in_ms(seconds: float | None) -> str:
    """Return a column of milliseconds."""
    return f"{'-' if seconds is None else format(seconds * 1e3, ',.1f'):>10}"
