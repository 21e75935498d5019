"""Parts of the workload of one replica at a rate: arrivals, times, limits on answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inflight.workload.arrivals import Arrivals, Gamma, Poisson
from inflight.workload.workload import Entry, Workload

MAX_CUT_SHARE = 0.1  # of requests that may be drawn longer than the model takes, and are cut
MAX_REQUEST_TOKENS = 2**20  # tokens of prompt and answer, where no model sets a limit


def arrivals(rate: float, gap_variation: float) -> Arrivals:
    """Return arrivals of this rate and squared coefficient of variation."""
    return Poisson(rate) if gap_variation == 1 else Gamma(rate, 1 / gap_variation)


def spread_variation(gap_variation: float, share: float) -> float:
    """Return the squared coefficient of variation of the gaps of a part of the replicas, behind a router.

    A router spreads a clump over all replicas. Within a time T, λT requests come on average and vary by v·λT (v: that
    of the gaps), so that each of N replicas has its mean varied by v / (λNT), λ being its own rate: as each of k has of
    gaps of v·k/N. No stream is taken to be more regular than chance by that, though one over many replicas is.

    Args:
        gap_variation: Of the whole stream.
        share: Of the replicas.
    """
    return min(gap_variation, max(1.0, gap_variation * share))


def at_rate(times: list[float], rate: float) -> list[float]:
    """Shift times to begin at 0 and stretch them to a mean gap of 1/rate."""
    span = times[-1] - times[0]
    scale = (len(times) - 1) / rate / span if span > 0 else 1.0
    return [(time - times[0]) * scale for time in times]


def with_max_tokens(entries: Sequence[Entry], name: str, notes: tuple[str, ...]) -> Workload:
    """Make a workload in which each request without a limit asks for as many tokens as the longest answer has: clients
    do not know lengths beforehand, and strategies that reserve memory must not know them either."""
    longest = max((one.output_tokens for one in entries), default=1)
    return Workload(tuple(replace(one, max_tokens=one.max_tokens or longest) for one in entries), name, notes=notes)
