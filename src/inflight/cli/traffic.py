"""Options that say what is asked: lengths, arrivals, a trace, limits on latency; in one form for every verb.

Knows the options' names and forms; what they may hold, the workload and metrics packages know.
"""

from __future__ import annotations

import math
from pathlib import Path

import click

from inflight.cli.verb import Decorator, stacked
from inflight.workload.arrivals import Arrivals, AtOnce, Poisson, parse_arrivals

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

arrivals_option = click.option(
    "--arrivals", metavar="FORM", help="poisson:R, gamma:R:BURSTINESS, constant:R, ramp:A-B:SECONDS."
)
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Of lengths and arrivals.")
trace_option = click.option("--trace", type=FILE, help="Requests as a trace has them; its format is detected.")
slo_option = click.option(
    "--slo",
    multiple=True,
    metavar="NAME=MS",
    help="Limit: ttft=500, also tpot, itl, itl_max, e2e, in ms; ttft=500(p95) names the share of requests that has to "
    "keep it, itl=50(p95) the share of a request's own gaps. Several times, or with commas.",
)


def length_options(prompts: str = "", answers: str = "") -> Decorator:
    """prompts, answers: what is taken where nothing is said."""
    return stacked(
        click.option("--input-tokens", metavar="FORM", help=f"Of prompts, as --output-tokens.{_default(prompts)}"),
        click.option(
            "--output-tokens",
            metavar="FORM",
            help=f"Of answers: N, uniform:A-B, lognormal:P50:P99, histogram:FILE.{_default(answers)}",
        ),
    )


def _default(form: str) -> str:
    return f"  [default: {form}]" if form else ""


def arrivals_of(rate: float | None, form: str | None) -> Arrivals | None:
    """form: of --arrivals. None: nothing was said. Raises click.UsageError, WorkloadError."""
    if rate is not None and form is not None:
        raise click.UsageError(f"--rate {rate:g} and --arrivals {form} both say when requests come; give one of them.")
    if rate is None:
        return None if form is None else parse_arrivals(form)
    return AtOnce() if rate == math.inf else Poisson(rate)
