"""Options that say what is asked of a deployment: a trace or distributions, a rate, promises; shared by plan and tune.

Knows which options go together; what they may hold, the workload and planning packages know.
"""

from __future__ import annotations

from typing import Any

import click

from inflight.cli.options import stacked
from inflight.cli.traffic import arrivals_of, arrivals_option, length_options, seed_option, slo_option, trace_option
from inflight.planning.demand import Demand, Drawn, Traced, fitting
from inflight.planning.traffic import analyze_traffic
from inflight.workload.arrivals import Gamma, Poisson
from inflight.workload.lengths import parse_lengths
from inflight.workload.traces.detect import load

demand_options = stacked(
    trace_option,
    length_options(),
    click.option("--rate", type=float, help="Requests per second, Poisson; of a trace its busiest five minutes."),
    arrivals_option,
    slo_option,
    seed_option,
)


def demand_of(values: dict[str, Any], max_tokens: int) -> Demand:
    """A demand from the options. max_tokens: of prompt and answer together, that the model takes."""
    rate, gap_variation = _arrivals(values)
    if values["trace"] is not None:
        for name in ("input_tokens", "output_tokens"):
            if values[name] is not None:
                raise click.UsageError(f"--trace says how long requests are; leave --{name.replace('_', '-')} out.")
        trace = fitting(load(values["trace"]).workload(values["trace"].name), max_tokens)
        rate = analyze_traffic(trace).peak_rate if rate is None else rate
        retimed = None if values["arrivals"] is None else gap_variation
        return Traced(trace, rate, retimed=retimed, longest=max_tokens)
    for name in ("input_tokens", "output_tokens"):
        if values[name] is None:
            raise click.UsageError(f"Missing option '--{name.replace('_', '-')}'; {_WHOLE}.")
    if rate is None:
        raise click.UsageError(f"Missing option '--rate'; {_WHOLE}.")
    return Drawn(
        rate, parse_lengths(values["input_tokens"]), parse_lengths(values["output_tokens"]), gap_variation, max_tokens
    )


_WHOLE = "give --input-tokens, --output-tokens and --rate (or --arrivals), or a --trace"


def _arrivals(values: dict[str, Any]) -> tuple[float | None, float]:
    """Rate and squared coefficient of variation of the gaps. A trace with a rate keeps its own bursts."""
    match arrivals_of(values):
        case None:
            return None, 1.0
        case Poisson(rate):
            return rate, 1.0
        case Gamma(rate, burstiness):
            return rate, 1 / burstiness
        case other:
            raise click.UsageError(
                f"Arrivals {other} have no steady rate with chance in it, for which one can be sized; give --rate, or "
                "--arrivals poisson:R or gamma:R:BURSTINESS."
            )
