"""Replicas on spot machines: those kept so that the SLOs hold while lost ones are replaced, and what they save.

A machine is lost with probability p in an hour, independent of the others, and its replacement serves after the
start-up time S. So each replica is away for the share λS / (1 + λS) of the time, λ = -ln(1 - p) / 3600 s, and how many
of m are is binomial. Kept are as many more as leave too few for no more than the share of the time that the SLOs allow.
"""

from __future__ import annotations

import bisect
import math

from msgspec import Struct

MAX_KEPT = 10_000  # replicas


class Spot(Struct, frozen=True):
    """Replicas on spot machines. kept: beyond the planned ones. short: share of the time in which more are away than
    are kept; enough: whether the SLOs allow that. interrupted: share of the requests whose replica is lost while they
    run, which start over. saved_per_hour: US dollars less than the planned replicas cost on demand; None: a price is
    not known."""

    loss_per_hour: float
    start_seconds: float
    kept: int
    short: float
    enough: bool
    interrupted: float
    per_hour: float | None
    saved_per_hour: float | None


def on_spot(
    replicas: int,
    loss: float,
    start: float,
    allowed: float,
    answer_seconds: float,
    price: float | None,
    spot_price: float | None,
) -> Spot:
    """Return the deployment on spot machines.

    Args:
        replicas: That are planned.
        loss: Probability that a machine is lost in an hour, below 1.
        start: Seconds until a replacement takes requests.
        allowed: Share of the time in which too few may be there.
        answer_seconds: E2E, in the mean.
        price, spot_price: Of a replica, in $ per hour.
    """
    rate = -math.log1p(-loss) / 3600
    away = rate * start / (1 + rate * start)

    def short(more: int) -> float:
        return _beyond(more, replicas + more, away)

    kept = bisect.bisect_left(range(MAX_KEPT), True, key=lambda more: short(more) <= allowed)
    per_hour = None if spot_price is None else (replicas + kept) * spot_price
    saved = None if per_hour is None or price is None else replicas * price - per_hour
    missing = short(kept)
    return Spot(loss, start, kept, missing, missing <= allowed, -math.expm1(-rate * answer_seconds), per_hour, saved)


def _beyond(number: int, replicas: int, away: float) -> float:
    """Return the probability that more than a number of replicas are away. away: the share of the time that each is."""
    if not away:
        return 0.0
    odds = math.log(away) - math.log1p(-away)
    logarithm, total = replicas * math.log1p(-away), 0.0  # of the probability that none is, then one, and so on
    for count in range(number + 1):
        total += math.exp(logarithm)
        logarithm += odds + math.log((replicas - count) / (count + 1))
    return max(0.0, 1 - total)
