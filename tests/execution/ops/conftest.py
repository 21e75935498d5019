"""What the tests of the op sets share: every op set this machine can run, and random material for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from inflight.execution.ops import native
from inflight.execution.ops.native import NativeOps
from inflight.execution.ops.reference import ReferenceOps

try:
    ISAS = native.available_isas()
except ImportError:
    ISAS = []
    collect_ignore_glob = ["test_native*.py"]


@lru_cache
def ops_for(dtype: str, isa: str, threads: int) -> NativeOps:
    return NativeOps(dtype, threads, isa)  # type: ignore[arg-type]


@pytest.fixture(params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ops(dtype: str, isa: str) -> NativeOps:
    return ops_for(dtype, isa, 2)


@pytest.fixture
def reference(dtype: str) -> ReferenceOps:
    return ReferenceOps(dtype)  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def _end_threads() -> Iterator[None]:
    yield
    ops_for.cache_clear()
