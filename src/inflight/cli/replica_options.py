"""Options of `inflight serve` about replicas, and what does not go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click

from inflight.cli.replicas.scale import Scale
from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError
from inflight.routing.registry import ROUTERS

DEFAULT_ROUTER = "prefix-aware"
MOST_REPLICAS = 1000

replica_options = grouped(
    "Replicas",
    click.option("--replicas", type=int, help="Engines behind this address, each in a replica of Ray Serve's."),
    click.option("--max-replicas", type=int, help="As many as long queues make of them; --replicas unless set."),
    click.option("--ray-address", help="Head of a Ray cluster to run them on; else a Ray of this machine is started."),
    click.option("--router", help=f"Who gets a request: {', '.join(ROUTERS)}; {DEFAULT_ROUTER} unless set."),
)


@dataclass(frozen=True, slots=True)
class Replicas:
    """What was asked for. address: of a Ray cluster."""

    scale: Scale
    address: str | None
    router: str


def replicas_of(values: dict[str, Any]) -> Replicas | None:
    """Takes the options out of the verb's arguments. Raises click.UsageError, SettingsError."""
    given = {name: values.pop(name) for name in ("replicas", "max_replicas", "ray_address", "router")}
    if given["replicas"] is None:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --replicas; leave it out.")
        return None
    _check(given, values)
    router = given["router"] or DEFAULT_ROUTER
    return Replicas(Scale(given["replicas"], given["max_replicas"]), given["ray_address"], router)


def _check(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    replicas, most, router = given["replicas"], given["max_replicas"], given["router"]
    if not 1 <= replicas <= MOST_REPLICAS:
        raise SettingsError(f"--replicas is {replicas}; give a number from 1 to {MOST_REPLICAS:,}.")
    if most is not None and not replicas <= most <= MOST_REPLICAS:
        raise SettingsError(
            f"--max-replicas is {most}; give a number from --replicas, which is {replicas}, to {MOST_REPLICAS:,}."
        )
    if router is not None and router not in ROUTERS:
        raise SettingsError(f"--router is {router!r}; known are {', '.join(ROUTERS)}.")
    for name in ("record", "lora_dir", "kv_events_config", "role"):
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is one engine's, and with --replicas there are several; leave it out."
            )
    if values["api_processes"]:
        raise click.UsageError("--api-processes has no place with --replicas: HTTP has a process of its own already.")
    if find_spec("ray") is None:  # not imported: that takes a second, in which something else may be wrong
        raise SettingsError(
            "--replicas needs Ray Serve, which is not installed; pip install 'inflight[ray]', or serve one engine."
        )
