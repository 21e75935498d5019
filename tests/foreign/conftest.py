"""A server with a key, a tap before it, and the client of the test file in an environment of its own.

A test file names its client: `CLIENT = "folder"`. With `-rA` or after a failure, what passed the tap is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server.conftest import Server, start

from .cases import KEY
from .clients import ForeignClient
from .environments import Environment
from .tap import Tap

__all__ = ["start"]  # a fixture for tests that need a server of their own

SENT = pytest.StashKey[dict[str, dict[str, set[str]]]]()
SECONDS_TO_INSTALL = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a client makes its environment."""
    for item in items:
        if item.get_closest_marker("foreign") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS_TO_INSTALL))


@pytest.fixture(scope="session")
def foreign_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server("--api-key", KEY, "--data-dir", str(tmp_path_factory.mktemp("data"))).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest) -> Environment:
    return Environment(request.module.CLIENT).make()


@pytest.fixture(scope="module")
def tap(foreign_server: Server, environment: Environment, request: pytest.FixtureRequest) -> Iterator[Tap]:
    opened = Tap(foreign_server.url)
    yield opened
    opened.close()
    fields = request.config.stash.setdefault(SENT, {}).setdefault(environment.name, {})
    for seen in opened.seen:
        fields.setdefault(f"{seen.method} {seen.path.partition('?')[0]}", set()).update(seen.fields)


@pytest.fixture(scope="module")
def client(environment: Environment, tap: Tap) -> Iterator[ForeignClient]:
    started = ForeignClient(environment, BASE_URL=f"{tap.url}/v1", API_KEY=KEY)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def what_was_sent(tap: Tap) -> Iterator[None]:
    before = len(tap.seen)
    yield
    for seen in tap.seen[before:]:
        print(seen)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which fields each client sends: what a server must know, or pass over."""
    for name, paths in sorted(config.stash.get(SENT, {}).items()):
        for path, fields in sorted(paths.items()):
            if fields:
                terminalreporter.write_line(f"{name} {path}: {', '.join(sorted(fields))}")
