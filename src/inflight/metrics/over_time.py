"""Means over time of what steps were like: each value weighs as long as its step lasted. And shares of a whole.

Knows values and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_over_time(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Σ value · seconds / Σ seconds; 0 where no time passed."""
    whole = math.fsum(seconds)
    return math.fsum(value * lasted for value, lasted in zip(values, seconds, strict=True)) / whole if whole else 0.0


def mean_while(values: Sequence[float], seconds: Sequence[float], holds: Sequence[bool]) -> float | None:
    """The same over those steps alone for which something held; None where it never did."""
    counted = [lasted if held else 0.0 for lasted, held in zip(seconds, holds, strict=True)]
    return mean_over_time(values, counted) if any(counted) else None


def share(part: float, whole: float) -> float:
    """part / whole; 0 of nothing."""
    return part / whole if whole else 0.0
