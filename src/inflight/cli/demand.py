"""Options of plan and tune for the demand on a deployment, and its limits of latency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from inflight.cli.traffic import (
    answer_lengths_setting,
    arrivals_of,
    arrivals_setting,
    prompt_lengths_setting,
    seed_setting,
    slo_setting,
    trace_setting,
)
from inflight.config.setting import setting
from inflight.planning.demand import Demand, Drawn, Traced, fitting
from inflight.planning.traffic import analyze_traffic
from inflight.workload.arrivals import Gamma, Poisson
from inflight.workload.lengths import parse_lengths
from inflight.workload.traces import load

_WHOLE = "give --input-tokens, --output-tokens and --rate (or --arrivals), or a --trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """Demand on a deployment, and its limits of latency."""

    trace: Path | None = trace_setting("Demand and SLOs")
    input_tokens: str | None = prompt_lengths_setting()
    output_tokens: str | None = answer_lengths_setting()
    rate: float | None = setting(None, "Requests per second, Poisson; of a trace its busiest five minutes.")
    arrivals: str | None = arrivals_setting()
    slo: tuple[str, ...] = slo_setting()
    seed: int = seed_setting()


def demand_of(asked: DemandOptions, max_tokens: int) -> Demand:
    """Return the demand. max_tokens: of prompt and answer together, that the model takes. Raises click.UsageError."""
    rate, gap_variation = _arrivals(asked)
    if asked.trace is not None:
        for name, form in (("--input-tokens", asked.input_tokens), ("--output-tokens", asked.output_tokens)):
            if form is not None:
                raise click.UsageError(f"--trace has the lengths of requests; leave {name} out.")
        trace = fitting(load(asked.trace).workload(asked.trace.name), max_tokens)
        rate = analyze_traffic(trace).peak_rate if rate is None else rate
        retimed = None if asked.arrivals is None else gap_variation
        return Traced(trace, rate, retimed=retimed, longest=max_tokens)
    if asked.input_tokens is None or asked.output_tokens is None or rate is None:
        given = {"--input-tokens": asked.input_tokens, "--output-tokens": asked.output_tokens, "--rate": rate}
        missing = next(name for name, value in given.items() if value is None)
        raise click.UsageError(f"Missing option '{missing}'; {_WHOLE}.")
    lengths = parse_lengths(asked.input_tokens), parse_lengths(asked.output_tokens)
    demand = Drawn(rate, *lengths, gap_variation, max_tokens)
    demand.check_lengths()
    return demand


def _arrivals(asked: DemandOptions) -> tuple[float | None, float]:
    """Return the rate, and the squared coefficient of variation of the gaps. A trace with a rate keeps its own
    bursts."""
    match arrivals_of(asked.rate, asked.arrivals):
        case None:
            return None, 1.0
        case Poisson(rate):
            return rate, 1.0
        case Gamma(rate, burstiness):
            return rate, 1 / burstiness
        case other:
            raise click.UsageError(
                f"--arrivals {other} is no steady random process, which sizing needs; give --rate, or --arrivals "
                "poisson:R or gamma:R:BURSTINESS."
            )
