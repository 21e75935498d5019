"""Definitions of all metrics, for engine, bench, simulator and planner.

Times are seconds on one clock: intended send s, first token f, last token l; n output tokens, k of which came with the
first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub

from inflight.metrics.confidence import quantile_interval


def ttft(intended_send: float, first_token: float) -> float:
    """Time to first token, f - s."""
    return first_token - intended_send


def tpot(first_token: float, last_token: float, output_tokens: int, with_first: int = 1) -> float | None:
    """Return the time per output token, (l - f) / (n - k); None where no token came after the first ones."""
    after = output_tokens - with_first
    return (last_token - first_token) / after if after > 0 else None


def itl(token_times: Sequence[float]) -> list[float]:
    """Return the inter-token latencies: the gaps between successive times of tokens, which never fall. Tokens of one
    time (accepted drafts, buffered output) make no gap; TPOT counts each of them."""
    return [*filter(None, map(sub, token_times[1:], token_times))]


def e2e(intended_send: float, last_token: float) -> float:
    """End-to-end latency, l - s."""
    return last_token - intended_send


def jct(first_send: float, last_token: float) -> float:
    """Job completion time of a program: from the intended send of its first request to the last token of its last."""
    return last_token - first_send


def padding_waste(padded_slots: int, all_slots: int) -> float:
    """Return padded token slots / all token slots computed."""
    return padded_slots / all_slots if all_slots else 0.0


def kv_waste(allocated_slots: int, used_slots: int) -> float:
    """(allocated - used) / allocated token slots."""
    return (allocated_slots - used_slots) / allocated_slots if allocated_slots else 0.0


def occupancy(running_rows: int, max_rows: int) -> float:
    """Batch occupancy: running rows / max rows."""
    return running_rows / max_rows


def attainment(attained: Iterable[bool]) -> float:
    """Return the share of the offered requests that met all their targets, which rejected and failed ones did not; 1
    where none were offered."""
    offered = [bool(one) for one in attained]
    return sum(offered) / len(offered) if offered else 1.0


def goodput(attained: Iterable[bool], seconds: float) -> float:
    """Return the requests per second that met all their targets."""
    return sum(attained) / seconds


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness, (Σ x)² / (n Σ x²): 1 when all have the same, 1 / n when one has all."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """p50, p95, p99 and mean, and how many samples they rest on. None where there are no samples.

    p50_interval, …: 95 % confidence; None where the samples do not reach that far.
    """

    samples: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    p50_interval: tuple[float, float] | None = None
    p95_interval: tuple[float, float] | None = None
    p99_interval: tuple[float, float] | None = None


def percentiles(values: Iterable[float]) -> Percentiles:
    """Return the percentiles of values in any order."""
    return sorted_percentiles(sorted(values))


def sorted_percentiles(ordered: Sequence[float]) -> Percentiles:
    """Return the percentiles of sorted values."""
    if not ordered:
        return Percentiles(0, None, None, None, None)
    mean = math.fsum(ordered) / len(ordered)
    p50, p95, p99 = (quantile(ordered, share) for share in (0.50, 0.95, 0.99))
    intervals = (quantile_interval(ordered, share) for share in (0.50, 0.95, 0.99))
    return Percentiles(len(ordered), mean, p50, p95, p99, *intervals)


def deviation(values: Sequence[float]) -> float | None:
    """Return the population standard deviation (divided by n, as numpy's and vLLM's); None where there are none."""
    return statistics.pstdev(values) if values else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of a sorted sequence, linear between neighbours."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean_over_time(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Σ value · seconds / Σ seconds; 0 where no time passed."""
    whole = math.fsum(seconds)
    return math.fsum(value * lasted for value, lasted in zip(values, seconds, strict=True)) / whole if whole else 0.0


def mean_while(values: Sequence[float], seconds: Sequence[float], holds: Sequence[bool]) -> float | None:
    """Return the mean over the steps for which a condition holds; None where it never does."""
    counted = [lasted if counts else 0.0 for lasted, counts in zip(seconds, holds, strict=True)]
    return mean_over_time(values, counted) if any(counted) else None


def share(part: float, whole: float) -> float:
    """part / whole; 0 of nothing."""
    return part / whole if whole else 0.0
