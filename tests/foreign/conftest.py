"""Servers with a key, a tap before each, and the client of the test file in an environment of its own.

`client` asks the built-in model, `agent` a scripted one that calls tools, `storing_agent` the same where responses are
stored. A test file names its client: `CLIENT = "folder"`. With `-rA` or after a failure, what passed the taps is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server.conftest import SCRIPTED, Server, start
from server.scripted import write_filler

from .cases import KEY, SCRIPTED_MODEL
from .clients import ForeignClient
from .environments import Environment
from .scripted import PROGRAM, write_model
from .tap import Seen, Tap

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


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _scripted(tmp_path_factory)


@pytest.fixture(scope="session")
def storing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _scripted(tmp_path_factory, "--data-dir", str(tmp_path_factory.mktemp("data")), "--store-responses")


def _scripted(tmp_path_factory: pytest.TempPathFactory, *arguments: str) -> Iterator[Server]:
    folder = write_model(tmp_path_factory.mktemp("model") / SCRIPTED_MODEL)
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    asked = (str(folder), "--served-model-name", SCRIPTED_MODEL, "--api-key", KEY, *arguments)
    running = Server(*asked, program=PROGRAM, env=env).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest) -> Environment:
    return Environment(request.module.CLIENT).make()


@pytest.fixture(scope="module")
def taps() -> Iterator[list[Tap]]:
    """Return the open ones."""
    opened: list[Tap] = []
    yield opened
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def open_tap(
    taps: list[Tap], environment: Environment, request: pytest.FixtureRequest
) -> Iterator[Callable[[Server], Tap]]:
    def open_one(server: Server) -> Tap:
        taps.append(Tap(server.url))
        return taps[-1]

    yield open_one
    fields = request.config.stash.setdefault(SENT, {}).setdefault(environment.name, {})
    for seen in _all_seen(taps):
        fields.setdefault(f"{seen.method} {seen.path.partition('?')[0]}", set()).update(seen.fields)


@pytest.fixture(scope="module")
def tap(foreign_server: Server, open_tap: Callable[[Server], Tap]) -> Tap:
    return open_tap(foreign_server)


@pytest.fixture(scope="module")
def agent_tap(scripted_server: Server, open_tap: Callable[[Server], Tap]) -> Tap:
    return open_tap(scripted_server)


@pytest.fixture(scope="module")
def client(environment: Environment, tap: Tap) -> Iterator[ForeignClient]:
    started = ForeignClient(environment, BASE_URL=f"{tap.url}/v1", API_KEY=KEY)
    yield started
    started.close()


@pytest.fixture(scope="module")
def agent(environment: Environment, agent_tap: Tap) -> Iterator[ForeignClient]:
    """The same client in a process of its own, over the scripted model."""
    started = ForeignClient(environment, BASE_URL=f"{agent_tap.url}/v1", API_KEY=KEY)
    yield started
    started.close()


@pytest.fixture(scope="module")
def storing_agent(
    environment: Environment, storing_server: Server, open_tap: Callable[[Server], Tap]
) -> Iterator[ForeignClient]:
    started = ForeignClient(environment, BASE_URL=f"{open_tap(storing_server).url}/v1", API_KEY=KEY)
    yield started
    started.close()


@pytest.fixture(scope="module")
def filler(
    environment: Environment, open_tap: Callable[[Server], Tap], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForeignClient]:
    """The client of a scripted model that fills gaps."""
    folder = write_filler(tmp_path_factory.mktemp("model") / "filler")
    running = Server(str(folder), "--served-model-name", "filler", "--api-key", KEY, program=[SCRIPTED]).ready()
    started = ForeignClient(environment, BASE_URL=f"{open_tap(running).url}/v1", API_KEY=KEY)
    yield started
    started.close()
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(autouse=True)
def what_was_sent(taps: list[Tap]) -> Iterator[None]:
    before = {id(seen) for seen in _all_seen(taps)}
    yield
    for seen in _all_seen(taps):
        if id(seen) not in before:
            print(seen)


def _all_seen(taps: list[Tap]) -> list[Seen]:
    return [seen for tap in taps for seen in tap.seen]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which fields each client sends: what a server must know, or pass over."""
    for name, paths in sorted(config.stash.get(SENT, {}).items()):
        for path, fields in sorted(paths.items()):
            if fields:
                terminalreporter.write_line(f"{name} {path}: {', '.join(sorted(fields))}")
