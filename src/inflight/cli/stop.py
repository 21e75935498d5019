"""`inflight stop`: take a model out of a server's memory, or end the server that has it alone."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

from inflight.cli.summary import show
from inflight.cli.verb import Verb

if TYPE_CHECKING:
    from inflight.launch.running_servers import RunningServer


@click.command("stop", cls=Verb)
@click.argument("model")
@click.option("--url", help="Ask this server to unload MODEL.")
@click.option("--api-key", help="Key to ask servers with that want one.")
def command(model: str, url: str | None, api_key: str | None) -> int:
    """Stop serving MODEL (or the server at an address): a server of several models unloads it, one that has it alone
    is ended, once its calls have had their answers."""
    from inflight.launch.running_servers import AskingError, ask, running_servers

    if url is not None:
        _unload(model, url, api_key)
        return 0
    servers = running_servers()
    for server in servers:
        if model.rstrip("/") == server.url:
            return _end(server)
        try:
            models = [one for one in ask(server.url, "/v1/models", api_key)["data"] if model in _names(one)]
        except (AskingError, KeyError, TypeError):  # it wants a key, or starts; it says what it was given
            models = [{"id": model}] if model in server.models else []
        if (models or model in server.models) and not server.is_pool:
            return _end(server)
        if models:
            _unload(models[0]["id"], server.url, api_key)
            return 0
    running = "; ".join(f"{one.url} with {', '.join(one.models) or 'the built-in model'}" for one in servers)
    raise AskingError(f"No server of this user has {model}. " + (f"Running: {running}." if running else "None runs."))


def _names(model: dict[str, object]) -> tuple[object, ...]:
    return model.get("id"), model.get("root")


def _unload(model: str, url: str, api_key: str | None) -> None:
    from inflight.launch.running_servers import ask

    ask(url, "/v1/models/unload", api_key, {"model": model})
    show(f"{model}: unloaded by the server at {url}; a call for it loads it again.")


def _end(server: RunningServer) -> int:
    os.kill(server.pid, signal.SIGTERM)
    show(f"The server at {server.url} (process {server.pid}) ends once its calls have had their answers.")
    return 0
