"""Options of `inflight serve` about replicas, and what does not go with them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import click

from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError
from inflight.extras import pip_install
from inflight.ray.ray_address import check_address
from inflight.ray.scale import Replicas, Scale
from inflight.routing.registry import ROUTERS

DEFAULT_ROUTER = "prefix-aware"
MOST_REPLICAS = 1000
_NAMES = ("replicas", "max_replicas", "prefill_replicas", "max_prefill_replicas", "ray_address", "router")

replica_options = grouped(
    "Replicas",
    click.option("--replicas", type=int, help="Engines behind this address, each in a replica of Ray Serve's."),
    click.option("--max-replicas", type=int, help="As many as long queues make of them; --replicas unless set."),
    click.option(
        "--prefill-replicas", type=int, help="Engines beside them that compute their prompts, and hand them over."
    ),
    click.option("--max-prefill-replicas", type=int, help="The same of these; --prefill-replicas unless set."),
    click.option("--ray-address", help="Head of a Ray cluster to run them on; else a Ray of this machine is started."),
    click.option("--router", help=f"Who gets a request: {', '.join(ROUTERS)}; {DEFAULT_ROUTER} unless set."),
)


def replicas_of(values: dict[str, Any]) -> Replicas | None:
    """Takes the options out of the verb's arguments. Raises click.UsageError, SettingsError."""
    given = {name: values.pop(name) for name in _NAMES}
    if given["replicas"] is None:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --replicas; leave it out.")
        return None
    _check(given, values)
    router, prefill = given["router"] or DEFAULT_ROUTER, None
    if given["prefill_replicas"] is not None:
        prefill = Scale(given["prefill_replicas"], given["max_prefill_replicas"])
        values["role"] = "both"  # of the pools together: how they exchange blocks may be said
    return Replicas(Scale(given["replicas"], given["max_replicas"]), given["ray_address"], router, prefill)


def _check(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    router = given["router"]
    _check_scale("replicas", given["replicas"], given["max_replicas"])
    _check_prefill(given, values)
    if router is not None and router not in ROUTERS:
        raise SettingsError(f"--router is {router!r}; known are {', '.join(ROUTERS)}.")
    for name in ("record", "lora_dir", "kv_events_config", "role"):
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is one engine's, and with --replicas there are several; leave it out."
            )
    if values["api_processes"] > 1:
        raise click.UsageError("--api-processes has no place with --replicas: HTTP has a process of its own already.")
    if find_spec("ray") is None:  # not imported: that takes a second, in which something else may be wrong
        raise SettingsError(
            f"--replicas needs Ray Serve, which is not installed; {pip_install('ray')}, or serve one engine."
        )
    if given["ray_address"] is not None:
        check_address(given["ray_address"])


def _check_scale(name: str, replicas: int, most: int | None) -> None:
    if not 1 <= replicas <= MOST_REPLICAS:
        raise SettingsError(f"--{name} is {replicas}; give a number from 1 to {MOST_REPLICAS:,}.")
    if most is not None and not replicas <= most <= MOST_REPLICAS:
        raise SettingsError(
            f"--max-{name} is {most}; give a number from --{name}, which is {replicas}, to {MOST_REPLICAS:,}."
        )


def _check_prefill(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    if given["prefill_replicas"] is None:
        if given["max_prefill_replicas"] is not None:
            raise click.UsageError("--max-prefill-replicas has no effect without --prefill-replicas; leave it out.")
        return
    _check_scale("prefill-replicas", given["prefill_replicas"], given["max_prefill_replicas"])
    for name in ("kv_transfer_host", "kv_transfer_port"):
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is one engine's, and each of --prefill-replicas has its own; leave it out."
            )
