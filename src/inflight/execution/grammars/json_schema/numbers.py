"""Put bounds and steps of numbers as the library can follow them."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Decimal
from typing import Any

MAX_BOUND = 10**15  # floats are exact to a unit here, and 64-bit integers reach further
MIN_BOUND = 1e-30  # nearer to 0 is 0, and is written with as many digits
DIGITS = 13  # of a number, which the library reads for sure
MAX_STEP = 2_000  # digits of `multipleOf` without its point
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_KEYWORDS = (*_LOWER, *_UPPER, "multipleOf")


def bounded(schema: dict[str, Any], types: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema with bounds that the library follows, and the keywords that are left to the check.

    The library's numbers are regular expressions. It writes the bound itself where that is excluded, whole, and in the
    same unit as the other bound; a bound beyond it is given instead. A large step takes an automaton of as many states.
    """
    given = {name: schema[name] for name in _KEYWORDS if name in schema}
    if not given:
        return schema, []
    kept = {name: value for name, value in schema.items() if name not in given}
    if not types & {"number", "integer"}:
        return kept, []
    left = [name for name in (*_LOWER, *_UPPER) if name in given and not _is_near(given[name])]
    for name in left:
        del given[name]
    if "multipleOf" in given and _step(given["multipleOf"]) is None:
        left.append("multipleOf")
        del given["multipleOf"]
    if "multipleOf" in given:
        _tighten(given)
    if "number" in types:
        _shorten(given)
        left += _moved(given)
    bounded = {name: given.get(name, value) for name, value in schema.items() if name in given or name in kept}
    bounded |= given  # those that were moved have other names
    for name in _KEYWORDS:
        if name not in given:
            bounded.pop(name, None)
    return bounded, left


def _is_near(bound: float) -> bool:
    return abs(bound) <= MAX_BOUND and (bound == 0 or abs(bound) >= MIN_BOUND)


def _step(step: float) -> int | None:
    """Return the digits of a step, where the library finds the same and they are few."""
    exact = Decimal(repr(step)).normalize()
    if exact > MAX_STEP:  # also what no float holds
        return None
    digits, places = exact, 0
    while digits != digits.to_integral_value():
        digits, places = digits * 10, places + 1
        if places > 12:
            return None
    found, taken = abs(float(step)), 0
    while found % 1 and taken <= places:
        found, taken = found * 10, taken + 1
    return int(digits) if found == int(digits) <= MAX_STEP else None


def _edges(given: dict[str, Any]) -> tuple[float | None, bool, float | None, bool]:
    """Return the tighter lower and upper bound, each with whether it is excluded."""
    low, low_out = given.get("minimum"), False
    if "exclusiveMinimum" in given and (low is None or given["exclusiveMinimum"] >= low):
        low, low_out = given["exclusiveMinimum"], True
    high, high_out = given.get("maximum"), False
    if "exclusiveMaximum" in given and (high is None or given["exclusiveMaximum"] <= high):
        high, high_out = given["exclusiveMaximum"], True
    return low, low_out, high, high_out


def _tighten(given: dict[str, Any]) -> None:
    """Put the bounds at the outermost multiples: between finer ones the library writes 10.50, which it knows as no
    multiple of 0.5."""
    low, low_out, high, high_out = _edges(given)
    step = Decimal(repr(given["multipleOf"]))
    for bound, is_out, names, rounding in (
        (low, low_out, _LOWER, "ROUND_CEILING"),
        (high, high_out, _UPPER, "ROUND_FLOOR"),
    ):
        if bound is None:
            continue
        exact = Decimal(repr(bound))
        multiple = (exact / step).to_integral_value(rounding) * step
        if is_out and multiple == exact:
            multiple += step if names is _LOWER else -step
        tightened = int(multiple) if multiple == multiple.to_integral_value() else float(multiple)
        if Decimal(repr(tightened)) == multiple and _is_near(tightened):
            for name in names:
                given.pop(name, None)
            given[names[0]] = tightened


def _shorten(given: dict[str, Any]) -> None:
    """Put the bounds at the outermost numbers within them of as many digits as the library reads: it rounds others, and
    writes 100.15 up to 100.14999999999999."""
    shorter = dict(given)
    for names, rounding in ((_LOWER, ROUND_CEILING), (_UPPER, ROUND_FLOOR)):
        for name in names:
            exact = Decimal(repr(given.get(name, 0)))
            if len(exact.normalize().as_tuple().digits) > DIGITS:
                unit = Decimal(1).scaleb(exact.adjusted() - DIGITS + 1)
                shorter[name] = float(exact.quantize(unit, rounding))
    low, _, high, _ = _edges(shorter)
    if low is None or high is None or low <= high:
        given.update(shorter)


def _moved(given: dict[str, Any]) -> list[str]:
    """Put a bound just beyond an excluded one that the library would write; what cannot be moved is left."""
    low, low_out, high, high_out = _edges(given)
    if low is None or high is None:
        return []
    if low_out and low >= 0 and low == int(low) and high < low + 1:
        moved = low + _just(low)
        if low < moved < high:
            del given["exclusiveMinimum"]
            given["minimum"] = moved
            return []
        return ["exclusiveMinimum"]
    if high_out and high <= 0 and high == int(high) and low > high - 1:
        moved = high - _just(high)
        if low < moved < high:
            del given["exclusiveMaximum"]
            given["maximum"] = moved
            return []
        return ["exclusiveMaximum"]
    return []


def _just(bound: float) -> float:
    """Return a distance that numbers of this size have digits for, as the library reads them."""
    return float(f"1e{len(str(int(abs(bound)))) - DIGITS}") if bound else MIN_BOUND


def unwritten(schema: dict[str, Any], types: frozenset[str]) -> list[float]:
    """Return valid numbers that the library writes with zeros behind them alone: of a bound away from 0 those that it
    begins with, 0.9 below 0.95 as 0.90; in [0.5, 0.55] the bound with fewer digits, 0.5 as 0.50. And bounds that it
    does not write at all: up to 20.5 the last multiple of 0.25."""
    if "number" not in types or not set(schema) <= {"type", *_KEYWORDS}:
        return []
    if "multipleOf" in schema:
        return _short_multiples(schema)
    low, low_out, high, high_out = _edges(schema)
    if any(bound is not None and not _is_near(bound) for bound in (low, high)):
        return []
    found = [
        *([] if high is None or high < 0 else _beginnings(high)),
        *([] if low is None or low > 0 else _beginnings(low)),
    ]
    if low is not None and high is not None and low * high > 0 and int(low) == int(high) and low <= high:
        near, far, is_out = (low, high, low_out) if low > 0 else (high, low, high_out)
        if not is_out and near != int(near) and _places(near) < _places(far):
            found.append(near)

    def is_within(one: float) -> bool:
        above = low is None or one > low or (one == low and not low_out)
        return above and (high is None or one < high or (one == high and not high_out))

    return sorted({one for one in found if is_within(one)})


def _short_multiples(schema: dict[str, Any]) -> list[float]:
    """Return the outermost multiples that have a fraction, with fewer digits than the step."""
    if _step(schema["multipleOf"]) is None:
        return []
    given, places = dict(schema), _places(schema["multipleOf"])
    _tighten(given)
    low, low_out, high, high_out = _edges(given)
    if low is not None and high is not None and low > high:
        return []
    edges = [bound for bound, is_out in ((low, low_out), (high, high_out)) if bound is not None and not is_out]
    return [one for one in edges if 0 < _places(one) < places]


def _beginnings(bound: float) -> list[float]:
    """Return the numbers with a fraction that a bound's digits begin with."""
    digits = Decimal(repr(bound))
    cut = (digits.quantize(Decimal(1).scaleb(-places), ROUND_DOWN) for places in range(1, min(_places(bound), DIGITS)))
    return [float(one) for one in cut if one != one.to_integral_value()]


def _places(number: float) -> int:
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) and exponent < 0 else 0
