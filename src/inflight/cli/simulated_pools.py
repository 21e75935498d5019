"""Options of `inflight simulate` about replicas, pools and what passes between them, and the setup that they make.

Knows which go together; what replicas are, the simulate package knows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import click

from inflight.cli.declared import registry_options
from inflight.cli.machines import Device, check_decode
from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError
from inflight.routing.registry import OPTIONS, ROUTERS
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.replicas import START_SECONDS, Scaling
from inflight.simulate.simulation import Pool, SimulationSetup

SETUP_MS = 1.0  # of a transfer between pools
_TWO_POOLS = ("max_prefill_replicas", "max_decode_replicas", "decode_asks", "first_token")

pool_options = grouped(
    "Replicas and pools",
    click.option("--replicas", type=int, help="Engines behind the router; 1 unless set."),
    click.option(
        "--max-replicas", type=int, help="Engines that long queues may make of them, as `inflight serve` does."
    ),
    click.option(
        "--replica-start-seconds",
        type=float,
        help=f"From when one more engine is wanted until it takes requests; {START_SECONDS:g} unless set.",
    ),
    click.option("--router", default="round-robin", show_default=True, help=f"{', '.join(ROUTERS)}."),
    *registry_options(OPTIONS),
    click.option("--prefill-replicas", type=int, help="Engines that compute prompts only."),
    click.option("--decode-replicas", type=int, help="Engines that go on from there."),
    click.option("--max-prefill-replicas", type=int, help="Of the prefill pool, as --max-replicas."),
    click.option("--max-decode-replicas", type=int, help="Of the decode pool, as --max-replicas."),
    click.option("--split-replicas", type=int, help="So many engines in all; the best split into the two is searched."),
    click.option(
        "--transfer-gbps", type=float, help="Gigabits per second from a prefill engine; of GPUs their cards'."
    ),
    click.option("--transfer-setup-ms", type=float, help=f"That every transfer takes; {SETUP_MS:g} unless set."),
    click.option(
        "--decode-asks",
        type=click.Choice(("after", "first")),
        help="A decode engine is asked after the prompt is computed, as behind vllm-router, or first: then blocks "
        "travel while it is, layer by layer where they are known; after unless set.",
    ),
    click.option(
        "--first-token",
        type=click.Choice(("decode", "prefill")),
        help="Whose first token the client sees; the decode engine's unless set.",
    ),
    click.option("--kv-bytes", type=float, help="Bytes of keys and values per token, for transfers and swap space."),
)


def setup_of(
    values: dict[str, Any], first: Pool, second: Pool, devices: tuple[Device, Device], seed: int
) -> SimulationSetup:
    content_seed = seed if values["prompt_seed"] is None else values["prompt_seed"]
    prefill, decode, split = (values[f"{name}_replicas"] for name in ("prefill", "decode", "split"))
    if values["replicas"] is not None and values["replicas"] < 1:
        raise click.UsageError(f"--replicas is {values['replicas']}; give a number from 1.")
    if prefill is None and decode is None and split is None:
        _check_one_pool(values, bool(first.capacity.host_blocks or first.folder))
        scaling = _scaling(values, "max_replicas", first.replicas)
        return SimulationSetup(replace(first, scaling=scaling), seed=seed, content_seed=content_seed)
    if values["max_replicas"] is not None:
        raise click.UsageError(
            "--max-replicas is of engines that do both prompts and decodes, and has no effect where there are two "
            "pools; give --max-prefill-replicas, --max-decode-replicas."
        )
    if values["replicas"] is not None:
        raise click.UsageError(
            "--replicas counts engines that do both prompts and decodes, and has no effect where there are two pools; "
            "leave it out."
        )
    if split is not None and (prefill is not None or decode is not None or split < 2):
        raise click.UsageError("--split-replicas searches the split of at least 2 engines; give it alone.")
    if split is None and (prefill is None or decode is None or min(prefill, decode) < 1):
        raise click.UsageError("--prefill-replicas and --decode-replicas go together, at least 1 each.")
    _check_blocks_move(first, second)
    link = _link(values, devices)
    scales = None if split is None else ("max_prefill_replicas", "max_decode_replicas")
    for name in scales or ():
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} scales a pool, and --split-replicas asks how large it is to be; leave "
                "one of them out."
            )
    pools = []
    for pool, number, name in ((first, prefill, "max_prefill_replicas"), (second, decode, "max_decode_replicas")):
        replicas = number or 1
        pools.append(replace(pool, replicas=replicas, scaling=_scaling(values, name, replicas)))
    if values["replica_start_seconds"] is not None and not any(pool.scaling for pool in pools):
        raise click.UsageError(_NO_SCALING.format("--max-prefill-replicas or --max-decode-replicas"))
    disagg_mode = DisaggMode(values["decode_asks"] or "after", values["first_token"] or "decode")
    return SimulationSetup(pools[0], pools[1], link, seed, content_seed, disagg_mode=disagg_mode)


_NO_SCALING = (
    "--replica-start-seconds is of engines that are added while others run, and there are none; give {} as well, or "
    "leave it out."
)


def _check_one_pool(values: dict[str, Any], moves: bool) -> None:
    """moves: whether blocks may move to a tier."""
    check_decode(values, moves)
    for name in _TWO_POOLS:
        if values[name] is not None:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is about pools for prompts and for decodes; give --prefill-replicas and "
                "--decode-replicas, or leave it out."
            )
    if values["replica_start_seconds"] is not None and values["max_replicas"] is None:
        raise click.UsageError(_NO_SCALING.format("--max-replicas"))


def _check_blocks_move(first: Pool, second: Pool) -> None:
    """As engines with roles do."""
    for pool in (first, second):
        if not pool.settings.enable_prefix_caching:
            raise SettingsError(
                "Blocks that come from another engine are found in the prefix cache, and --no-prefix-caching is given; "
                "leave it out."
            )
        if pool.capacity.windows != (0,) or pool.capacity.state_snapshots:
            raise SettingsError(
                f"Prefill and decode on engines of their own hand keys and values over, and this model's layers look "
                f"back differently far (windows {pool.capacity.windows}) or keep a recurrent state "
                f"({pool.capacity.state_snapshots} snapshots), which the engine does not hand over; leave "
                "--prefill-replicas and --decode-replicas out."
            )


def _scaling(values: dict[str, Any], name: str, least: int) -> Scaling | None:
    most, seconds = values[name], values["replica_start_seconds"]
    if most is None:
        return None
    if most < least:
        raise click.UsageError(
            f"--{name.replace('_', '-')} is {most}, and there are {least} from the start; give {least} or more."
        )
    if seconds is not None and not 0 <= seconds < math.inf:
        raise click.UsageError(f"--replica-start-seconds is {seconds:g}; give seconds, from 0.")
    return Scaling(most, START_SECONDS if seconds is None else seconds)


def _link(values: dict[str, Any], devices: tuple[Device, Device]) -> Link:
    """From one engine of the first pool; of GPUs as fast as the network cards of the slower end, unless given."""
    gbps = values["transfer_gbps"]
    if gbps is not None and not 0 < gbps < math.inf:
        raise click.UsageError(f"--transfer-gbps is {gbps:g}; give gigabits per second, above 0.")
    if gbps is None and devices[0].link_gbps is not None and devices[1].link_gbps is not None:
        gbps = min(devices[0].link_gbps, devices[1].link_gbps)
    if gbps is None:
        raise click.UsageError("Keys and values must move between the pools; give --transfer-gbps, such as 100.")
    moved = kv_bytes(devices[0].known.get("bytes_per_token"), values, "--transfer-gbps")
    setup_ms = SETUP_MS if values["transfer_setup_ms"] is None else values["transfer_setup_ms"]
    if not 0 <= setup_ms < math.inf:
        raise click.UsageError(f"--transfer-setup-ms is {setup_ms:g}; give milliseconds, from 0.")
    return Link(moved, gbps, setup_ms / 1e3, devices[0].layers)


def kv_bytes(known: float | None, values: dict[str, Any], option: str) -> float:
    found = known if values["kv_bytes"] is None else values["kv_bytes"]
    if found is not None and not 0 < found < math.inf:
        raise click.UsageError(f"--kv-bytes is {found:g}; give bytes of keys and values per token, above 0.")
    if found is None:
        raise click.UsageError(f"{option} needs the bytes of a token, which the step model lacks; give --kv-bytes.")
    return float(found)
