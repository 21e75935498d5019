"""Fixtures of the tests of backends: every one that this machine can run, and random material for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from inflight.execution.backends import native
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.reference import ReferenceBackend

from .material import OnArrays

try:
    ISAS = native.available_isas()
except ImportError:
    ISAS = []
    collect_ignore_glob = ["test_native*.py"]

# From day to day each test runs on the best, on the one of half the width and on the one without any; what is drawn at
# random, on all of them; and with `./check --all` all tests on all of them.
_USUAL = {*ISAS[:1], "avx2", "portable"}


@lru_cache
def ops_for(dtype: str, isa: str, threads: int) -> OnArrays:
    return OnArrays(NativeBackend(dtype, threads, isa))  # type: ignore[arg-type]


@pytest.fixture(params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[pytest.param(one, marks=() if one in _USUAL else pytest.mark.wide) for one in ISAS])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ops(dtype: str, isa: str) -> OnArrays:
    return ops_for(dtype, isa, 2)


@pytest.fixture
def reference(dtype: str) -> OnArrays:
    return OnArrays(ReferenceBackend(dtype))  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def _end_threads() -> Iterator[None]:
    yield
    ops_for.cache_clear()
