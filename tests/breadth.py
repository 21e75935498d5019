"""Which of a test's parameters are tried each time, and which with `./check --all` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(values: Iterable[Any], usual: int = 1) -> list[Any]:
    """Parameters (tuples: of several) of which the first so many are representative; the others are more of the same,
    and marked `wide`."""
    return [one if place < usual else _wide(one) for place, one in enumerate(values)]


def usual_of(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Parameters of which those that are named are representative, wherever they stand."""
    return [one if one in usual else _wide(one) for one in values]


def _wide(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.wide)
