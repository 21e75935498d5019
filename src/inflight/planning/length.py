"""How long a trial runs, and which part of it is read: the batch fills first and drains last, and neither is the steady
state that a sizing is about.

An engine that begins empty is full once the first requests have stayed their time. After two mean residences it holds
about 95 % of what it will hold (answers are spread widely, so that one is not enough); what ends after the last arrival
runs in emptying batches, whose steps are shorter. Read too early or too late, every rate looks better than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FILL = 2.0  # mean residences before a run is read
DRAIN = 0.5  # and after, of arrivals that keep the batch full for those that are read
LEAST_FILL = 0.05  # share of the run


@dataclass(frozen=True, slots=True)
class Length:
    """requests: of the run. begin, end: shares of its arrivals' span between which it is read."""

    requests: int
    begin: float = LEAST_FILL
    end: float = 1.0


def length(residents: float, measured: float, most: float) -> Length:
    """residents: requests that are under way at once, over all replicas; by Little's law so many come during a mean
    residence. measured: requests that are to be read. most: requests of a run; what is read gives way, down to a third.
    """
    fill, drain = FILL * residents, DRAIN * residents
    measured = max(measured, 1.0)
    if fill + measured + drain > most:
        measured = max(min(measured, most / 3), most - fill - drain)
        squeezed = min(1.0, (most - measured) / max(fill + drain, 1e-9))
        fill, drain = fill * squeezed, drain * squeezed
    requests = fill + measured + drain
    return Length(math.ceil(requests), max(LEAST_FILL, fill / requests), 1 - drain / requests)
