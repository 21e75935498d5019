"""The explorer of a plan: one page whose sliders choose among runs that were simulated before.

The page reads the runs, and interpolates between neighbours that both were in balance. It is a file with its styles and
its script, which loads nothing.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.report.page.page import render_page

SHARES = ("p50", "p95", "p99")


class ExploredRun(Struct):
    """One load of a layout.

    Attributes:
        rate: Requests/s of each replica.
        saturated: The queue grew without end: its latencies measure the length of the run, and are left out.
        latency: Metric → p50, p95, p99 in seconds, as typical.
        low, high: The same with all that is uncertain of step times at its fast and at its slow end; empty where that
            was not simulated, or saturated.
        shares: What a step's time goes into → share.
        rows: Sequences that run at once, mean.
        is_full: Whether memory for keys and values is what bounds the batch.
        requests: That the percentiles rest on.
    """

    rate: float
    saturated: bool
    latency: dict[str, list[float | None]]
    low: dict[str, list[float | None]]
    high: dict[str, list[float | None]]
    slow_saturated: bool
    fast_saturated: bool
    shares: dict[str, float]
    rows: float
    step_seconds: float
    is_full: bool
    requests: int


class ExploredLayout(Struct):
    """One way to run an engine. runs: by rising rate. pooled: replicas that were simulated together, behind a router.
    price: US dollars per GPU and hour; None where not known."""

    name: str
    gpus: int
    settings: dict[str, str]
    pooled: int
    price: float | None
    runs: list[ExploredRun]


class Explored(Struct):
    """The runs of a page, and what its sliders begin with.

    Attributes:
        rate: Requests/s of all replicas together.
        limits: Metric → milliseconds; None: no limit.
        share: The percentile that has to keep the limits, an index of SHARES.
        input_tokens, output_tokens: Means of prompts and answers; 0 where answers are vectors.
        about: Sentences on the demand and the basis.
        unit: The noun for what a price is of.
    """

    rate: float
    limits: dict[str, float | None]
    share: int
    input_tokens: float
    output_tokens: float
    layouts: list[ExploredLayout]
    about: list[str]
    unit: str = "GPU"


def render_explorer(title: str, found: Explored) -> str:
    tables = [(layout, _rows(layout)) for layout in found.layouts]
    return render_page("explorer", title=title, found=found, tables=tables, shares=SHARES)


def _rows(layout: ExploredLayout) -> list[tuple[str, ...]]:
    """Return the runs as text, for those who see no sliders."""
    return [
        (
            f"{run.rate:.3g}{' (saturated)' if run.saturated else ''}",
            *(
                _milliseconds(run, metric, at)
                for metric, at in (("ttft", 0), ("ttft", 2), ("tpot", 0), ("tpot", 2), ("itl", 2), ("e2e", 2))
            ),
            f"{run.rows:,.0f}",
            f"{run.step_seconds * 1e3:,.0f} ms",
        )
        for run in layout.runs
    ]


def _milliseconds(run: ExploredRun, metric: str, at: int) -> str:
    value = run.latency[metric][at] if run.latency else None
    return "-" if value is None else f"{value * 1e3:,.0f} ms"
