"""A stub server that plays the script in each request's body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.stub_server import StubServer


@pytest.fixture(scope="session")
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server
