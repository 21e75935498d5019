"""Options of `inflight serve` about replicas, and what does not go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click

from inflight.cli.declared import settings_options
from inflight.config.setting import SettingsError, declared_settings, setting
from inflight.extras import pip_install
from inflight.ray.head import check_address
from inflight.ray.replica_setup import Replicas, Scale
from inflight.routing.registry import ROUTERS

DEFAULT_ROUTER = "prefix-aware"
MAX_REPLICAS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """Replicas, and the router before them."""

    replicas: int | None = setting(None, "Engines behind this address, each in a replica of Ray Serve.", "Replicas")
    max_replicas: int | None = setting(None, "Maximum replicas when scaling with queue length; --replicas unless set.")
    prefill_replicas: int | None = setting(None, "Engines that compute prompts for them, and send keys and values.")
    max_prefill_replicas: int | None = setting(None, "Maximum prefill replicas; --prefill-replicas unless set.")
    ray_address: str | None = setting(
        None, "Head of a Ray cluster to run them on; else Ray is started on this machine."
    )
    router: str | None = setting(None, f"Router of requests: {', '.join(ROUTERS)}; {DEFAULT_ROUTER} unless set.")


replica_options = settings_options(ReplicaOptions)


def replicas_of(values: dict[str, Any]) -> Replicas | None:
    """Take the options out of the verb's arguments. Raises click.UsageError, SettingsError."""
    given = {one.name: values.pop(one.name) for one in declared_settings(ReplicaOptions)}
    if given["replicas"] is None:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} has no effect without --replicas; leave it out.")
        return None
    _check(given, values)
    router, prefill = given["router"] or DEFAULT_ROUTER, None
    if given["prefill_replicas"] is not None:
        prefill = Scale(given["prefill_replicas"], given["max_prefill_replicas"])
        values["role"] = "both"  # of the pools together: options of transfers have an effect
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
                f"--{name.replace('_', '-')} is for one engine, and with --replicas there are several; leave it out."
            )
    if find_spec("ray") is None:  # not imported: that takes a second, before other errors
        raise SettingsError(
            f"--replicas needs Ray Serve, which is not installed; {pip_install('ray')}, or serve one engine."
        )
    if given["ray_address"] is not None:
        check_address(given["ray_address"])


def _check_scale(name: str, replicas: int, maximum: int | None) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise SettingsError(f"--{name} is {replicas}; give a number from 1 to {MAX_REPLICAS:,}.")
    if maximum is not None and not replicas <= maximum <= MAX_REPLICAS:
        raise SettingsError(
            f"--max-{name} is {maximum}; give a number from --{name}, which is {replicas}, to {MAX_REPLICAS:,}."
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
                f"--{name.replace('_', '-')} is for one engine, and each of --prefill-replicas has its own; leave it "
                "out."
            )
