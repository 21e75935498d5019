"""Options of plan for replicas that come and go: their start-up, and machines that may be lost."""

from __future__ import annotations

from dataclasses import dataclass

import click

from inflight.cli.demand import PlannedDemandOptions
from inflight.config.setting import Bound, above_zero, at_least, check_settings, setting
from inflight.planning.autoscaling import LoadProfile, daily_profile, profile_of_trace
from inflight.planning.demand import Demand, Traced
from inflight.planning.question import FleetQuestion
from inflight.planning.traffic import analyze_arrivals
from inflight.workload.arrivals import Daily, parse_arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Replicas that come and go."""

    startup_seconds: float | None = setting(
        None,
        "Until a new replica takes requests; unless set, a minute and loading its weights at 2 GB/s.",
        "Layouts",
        bound=at_least(0),
    )
    spot_loss: float | None = setting(
        None,
        "Also on spot machines, each lost with this chance in an hour.",
        bound=Bound(0, 1, "a chance above 0 and below 1, as 0.05", above=True, below=True),
        metavar="P",
    )
    spot_price: float | None = setting(
        None, "$ per GPU (or machine) and hour of those.", bound=above_zero("$ per hour")
    )

    def __post_init__(self) -> None:
        check_settings(self)


def fleet_of(asked: FleetOptions, traffic: PlannedDemandOptions, demand: Demand) -> FleetQuestion:
    """Return what is asked of replicas that come and go. Raises click.UsageError."""
    if asked.spot_price is not None and asked.spot_loss is None:
        raise click.UsageError(
            "--spot-price is of machines that may be lost; give the chance of that in an hour, --spot-loss, too, or "
            "leave it out."
        )
    profile = None if traffic.gpus is not None else _profile(traffic, demand)
    if asked.startup_seconds is not None and profile is None and asked.spot_loss is None:
        raise click.UsageError(
            "--startup-seconds is of replicas that come and go; give a --trace, --arrivals daily:LOW-HIGH:HOURS or "
            "--spot-loss, too, or leave it out."
        )
    return FleetQuestion(profile, asked.startup_seconds, asked.spot_loss, asked.spot_price)


def _profile(traffic: PlannedDemandOptions, demand: Demand) -> LoadProfile | None:
    """Return the load over time; None where it does not vary."""
    if isinstance(demand, Traced):
        return profile_of_trace(demand.trace, demand.rate / analyze_arrivals(demand.trace).peak_rate)
    match None if traffic.arrivals is None else parse_arrivals(traffic.arrivals):
        case Daily(low, high, hours):
            factor = demand.rate / high
            return daily_profile(Daily(factor * low, factor * high, hours))
    return None
