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
    from inflight.launch.running_servers import AskingError, running_servers

    if url is not None:
        _unload(model, url, api_key)
        return 0
    servers = running_servers()
    known = [(one, *found) for one in servers if (found := _found_at(one, model, api_key)) is not None]
    having = [(one, name) for one, name, is_in_memory in known if is_in_memory]
    if known and not having:
        show(f"{model} is in no server's memory; {', '.join(one.url for one, *_ in known)} would load it for a call.")
        return 0
    if not having:
        running = "; ".join(f"{one.url} with {', '.join(one.models) or _unnamed(one)}" for one in servers)
        all_servers = f"Running: {running}." if running else "None runs."
        raise AskingError(f"No server of this user has {model}. {all_servers}")
    if len(having) > 1:
        addresses = ", ".join(one.url for one, _ in having)
        how = "stop one by its address"
        if all(one.is_pool for one, _ in having):
            how = f"`inflight stop {model} --url ADDRESS` unloads it at one"
        raise AskingError(f"{len(having)} servers of this user have {model}; {how}: {addresses}.")
    [(server, name)] = having
    if server.is_pool and name != server.url:
        _unload(name, server.url, api_key)
    else:
        _end(server)
    return 0


def _found_at(server: RunningServer, model: str, api_key: str | None) -> tuple[str, bool] | None:
    """Return the name that a server has for a model, or its address where that is given, and whether it has it in
    memory; None: it has no such model."""
    from inflight.launch.running_servers import AskingError, ask

    if model.rstrip("/").replace("//localhost:", "//127.0.0.1:") == server.url:
        return server.url, True
    if not server.is_pool and model in server.models:
        return model, True
    try:
        listed = ask(server.url, "/v1/models", api_key)["data"]
        found = next((one for one in listed if model in (one.get("id"), one.get("root"))), None)
        return None if found is None else (found["id"], found.get("state", "loaded") not in ("unloaded", "failed"))
    except (AskingError, KeyError, TypeError) as error:
        show(f"{error}")
        return None


def _unnamed(server: RunningServer) -> str:
    return "no model in memory" if server.is_pool else "the built-in model"


def _unload(model: str, url: str, api_key: str | None) -> None:
    from inflight.launch.running_servers import ask

    ask(url, "/v1/models/unload", api_key, {"model": model})
    show(f"{model}: unloaded by the server at {url}; a call for it loads it again.")


def _end(server: RunningServer) -> None:
    os.kill(server.pid, signal.SIGTERM)
    show(f"The server at {server.url} (process {server.pid}) ends once its calls have had their answers.")
