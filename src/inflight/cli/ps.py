"""`inflight ps`: the servers of this user on this machine, and the models that each has in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.list import show_table
from inflight.cli.progress import ago
from inflight.cli.summary import show
from inflight.cli.verb import Verb

if TYPE_CHECKING:
    from inflight.launch.running_servers import RunningServer

_COLUMNS = ("MODEL", "STATE", "MEMORY", "SERVER", "PROCESS", "SINCE", "UNTIL")


@click.command("ps", cls=Verb)
@click.option("--url", help="Ask this server alone, which may be another user's or machine's.")
@click.option("--api-key", help="Key to ask servers with that want one.")
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON object.")
def command(url: str | None, api_key: str | None, as_json: bool) -> None:
    """List running servers and their models: state, memory, since when, and until when they stay in memory."""
    from inflight.launch.running_servers import AskingError, NotListening, ask, running_servers

    servers: list[tuple[str, RunningServer | None]] = [(one.url, one) for one in running_servers()]
    if url is not None:
        servers = [(url, next((one for address, one in servers if address == url.rstrip("/")), None))]
    found: list[dict[str, Any]] = []
    for address, server in servers:
        names = () if server is None else server.models or ("not known",)
        if server is not None and not server.is_ready:
            found += [_line({"id": name, "state": "loading"}, address, server) for name in names]
            continue
        try:
            models = ask(address, "/v1/models", api_key)["data"]
        except (AskingError, KeyError, TypeError) as error:
            if url is not None:
                raise
            state = "ending" if isinstance(error, NotListening) else "not known"  # it listened once
            if state != "ending":
                show(f"{error}")
            models = [{"id": name, "state": state} for name in names]
        found += [_line(one, address, server) for one in models if one.get("parent") is None]
    if as_json:
        print(json.dumps({"models": found}))
    elif not found:
        print("No server of this user runs on this machine; `inflight serve MODEL` starts one.")
    else:
        show_table([_COLUMNS, *(_row(one) for one in found)])


def _line(model: dict[str, Any], url: str, server: RunningServer | None) -> dict[str, Any]:
    from inflight.launch.running_servers import process_memory

    residency = model.get("residency") or {}
    is_in_memory = model.get("state") in ("loading", "loaded", "draining", "unloading")
    memory = residency.get("memory_bytes") if is_in_memory else None
    if memory is None and server is not None and not server.is_pool:
        memory = process_memory(server.pid)
    return {
        "model": str(model.get("id")),
        "state": model.get("state", "loaded"),
        "memory_bytes": memory,
        "url": url,
        "pid": None if server is None else server.pid,
        "since": None if server is None else server.since,
        "pinned": residency.get("pinned"),
        "is_pool": bool(residency),
    }


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    from inflight.execution.memory import gib

    until = "the server ends" if not one["is_pool"] or one["pinned"] else "others need its memory"
    return (
        one["model"],
        one["state"],
        gib(one["memory_bytes"]) if one["memory_bytes"] else "–",
        one["url"],
        str(one["pid"] or "–"),
        ago(one["since"]) if one["since"] else "–",
        until if one["state"] == "loaded" else "–",
    )
