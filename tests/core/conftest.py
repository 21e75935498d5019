"""Drains what a test of the scheduler leaves unfinished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .harness import MADE


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[Any]:
    """Run a test, then each harness that it made to the end of all requests (invariants 1, 2 and 9)."""
    MADE.clear()
    called = yield
    for harness in [*MADE]:
        harness.drain()
    return called
