"""Replicas on spot machines: those kept so that the SLOs hold while lost ones are replaced, and what they save.

A machine is lost with probability p in an hour, independent of the others, and its replacement serves after the
start-up time S. Of m replicas about m·λ·S are away at a time, λ = -ln(1 - p) / 3600 s, by Poisson's law. Kept are as
many more as leave too few for no more than the share of the time that the SLOs allow.
"""

from __future__ import annotations

import math

from msgspec import Struct

MAX_KEPT = 10_000  # replicas


class Spot(Struct, frozen=True):
    """Replicas on spot machines. kept: beyond the planned ones. short: share of the time in which more are away than
    are kept. interrupted: share of the requests whose replica is lost while they run, which begin anew. saved_per_hour:
    US dollars less than the planned replicas cost on demand; None: a price is not known."""

    loss_per_hour: float
    start_seconds: float
    kept: int
    short: float
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

    def short(more: int) -> float:
        return _beyond(more, (replicas + more) * rate * start)

    kept = next((more for more in range(MAX_KEPT) if short(more) <= allowed), MAX_KEPT)
    per_hour = None if spot_price is None else (replicas + kept) * spot_price
    saved = None if per_hour is None or price is None else replicas * price - per_hour
    return Spot(loss, start, kept, short(kept), -math.expm1(-rate * answer_seconds), per_hour, saved)


def _beyond(number: int, mean: float) -> float:
    """Return the probability that a Poisson variable of this mean is above a number."""
    term, total = math.exp(-mean), 0.0
    for count in range(number + 1):
        total += term
        term *= mean / (count + 1)
    return max(0.0, 1 - total)
