"""Options that say what is asked of a deployment: a trace or distributions, a rate, promises; shared by plan and tune.

Knows the options' names; what they may hold, the workload and planning packages know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.cli.options import stacked
from inflight.planning.demand import Demand, Drawn, Traced, fitting
from inflight.planning.traffic import analyze_traffic
from inflight.workload.lengths import parse_lengths
from inflight.workload.traces.detect import load

demand_options = stacked(
    click.option(
        "--trace",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Trace file of requests, any format.",
    ),
    click.option(
        "--input-tokens", metavar="LENGTHS", help="Prompts: N, uniform:A-B, lognormal:P50:P99, histogram:FILE."
    ),
    click.option("--output-tokens", metavar="LENGTHS", help="Answers, in the same forms."),
    click.option("--rate", type=float, help="Requests per second in all; of a trace its busiest five minutes."),
    click.option("--burstiness", type=float, help="Squared variation of gaps between arrivals; 1 is Poisson."),
    click.option(
        "--slo",
        multiple=True,
        metavar="SLO",
        help="Promise: ttft=1000(p99), also tpot, itl, e2e; in ms; several times.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated traffic."),
)


def demand_of(values: dict[str, Any], max_tokens: int) -> Demand:
    """A demand from the options. max_tokens: of prompt and answer together, that the model takes."""
    if values["trace"] is not None:
        for name in ("input_tokens", "output_tokens"):
            if values[name] is not None:
                raise click.UsageError(f"--trace says how long requests are; leave --{name.replace('_', '-')} out.")
        return _traced(values, max_tokens)
    for name in ("input_tokens", "output_tokens", "rate"):
        if values[name] is None:
            raise click.UsageError(
                f"Missing option '--{name.replace('_', '-')}'; give --input-tokens, --output-tokens and --rate, or a "
                "--trace."
            )

    return Drawn(
        values["rate"],
        parse_lengths(values["input_tokens"]),
        parse_lengths(values["output_tokens"]),
        1.0 if values["burstiness"] is None else values["burstiness"],
        max_tokens,
    )


def _traced(values: dict[str, Any], max_tokens: int) -> Demand:

    trace = fitting(load(values["trace"]).workload(values["trace"].name), max_tokens)
    rate = analyze_traffic(trace).peak_rate if values["rate"] is None else values["rate"]
    return Traced(trace, rate, retimed=values["burstiness"])
