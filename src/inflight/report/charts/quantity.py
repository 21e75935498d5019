"""Numbers with a unit and three significant digits, and shortened names."""

from __future__ import annotations

import math

MISSING = "–"
_SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


def scale_of(greatest: float, unit: str) -> tuple[float, str]:
    """Return the divisor and the unit that suit a value; only seconds have smaller units."""
    if unit != "s":
        return 1.0, unit
    factor, name = _SECONDS[0]
    for one, named in _SECONDS:
        if greatest >= 0.9 * one:
            factor, name = one, named
    return factor, name


def quantity(value: float | None, unit: str = "") -> str:
    """Return "12.3 ms", "4,210 tokens", "37 %"; the unit "share" is shown in percent."""
    if value is None or math.isnan(value):
        return MISSING
    if unit == "share":
        return f"{digits(value * 100)} %"
    factor, name = scale_of(abs(value), unit) if value else (1.0, unit)
    shown = digits(value / factor)
    return f"{shown} {name}".rstrip()


def digits(value: float) -> str:
    """Return three significant digits, and all before the point."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.2e}"
    if size < 1:
        return f"{value:.3g}"
    places = 1 if size >= 10 else 2
    return f"{value:,.{places}f}".rstrip("0").rstrip(".")


def short(value: float) -> str:
    """Return a number for axes: 12k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if letter == "k" else size
            return f"{digits(value / divisor)}{letter}"
    return digits(value)


def shortened(name: str) -> str:
    """Return at most 11 characters of a name, with its end: beginnings of ids are all alike."""
    return name if len(name) <= 11 else f"{name[:4]}…{name[-6:]}"
