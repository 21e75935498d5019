"""Options of `inflight simulate` for replicas, pools and transfers between them, and the setup they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import click

from inflight.cli.declared import registry_options, settings_options
from inflight.cli.machines import DecodeOptions, Device
from inflight.config.setting import SettingsError, above_zero, at_least, option, setting
from inflight.routing.registry import OPTIONS, ROUTERS
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.replicas import START_SECONDS, Scaling
from inflight.simulate.simulation import Pool, SimulationSetup

SETUP_MS = 1.0  # of a transfer between pools
_TRANSFER = ("transfer_gbps", "transfer_setup_ms")
_TWO_POOLS = ("max_prefill_replicas", "max_decode_replicas", "decode_asks", "first_token")
MAX_OF_POOLS = ("max_prefill_replicas", "max_decode_replicas")
_NO_SCALING = (
    "--replica-start-seconds is for engines that are added while others run, and none are; give {} as well, or leave "
    "it out."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Replicas, their router, and pools for prefill and decode."""

    replicas: int | None = setting(
        None, "Engines behind the router; 1 unless set.", "Replicas and pools", bound=at_least(1)
    )
    max_replicas: int | None = setting(None, "Maximum replicas when scaling with queue length, as in `inflight serve`.")
    replica_start_seconds: float | None = setting(
        None,
        f"Seconds from when one more engine is wanted until it takes requests; {START_SECONDS:g} unless set.",
        bound=at_least(0, "seconds"),
    )
    router: str = setting("round-robin", f"{', '.join(ROUTERS)}.")
    prefill_replicas: int | None = setting(None, "Engines that compute prompts only.")
    decode_replicas: int | None = setting(None, "Engines that decode what those computed.")
    max_prefill_replicas: int | None = setting(None, "Maximum prefill replicas, as --max-replicas.")
    max_decode_replicas: int | None = setting(None, "Maximum decode replicas, as --max-replicas.")
    split_replicas: int | None = setting(None, "Engines in all; the best split into prefill and decode is searched.")
    transfer_gbps: float | None = setting(
        None,
        "Gbit/s from a prefill engine; with --hardware the network cards' unless set.",
        bound=above_zero("gigabits per second"),
    )
    transfer_setup_ms: float | None = setting(
        None, f"Milliseconds before each transfer; {SETUP_MS:g} unless set.", bound=at_least(0, "milliseconds")
    )
    decode_asks: Literal["after", "first"] | None = setting(
        None,
        "When a decode engine is asked: after the prompt is computed, as behind vllm-router, or first: then blocks "
        "travel during prefill, by layers where they are known; after unless set.",
        is_choice=True,
    )
    first_token: Literal["decode", "prefill"] | None = setting(
        None, "The engine whose first token the client gets; decode unless set.", is_choice=True
    )
    kv_bytes: float | None = setting(
        None,
        "Bytes of keys and values per token, for transfers and swap space.",
        bound=above_zero("bytes of keys and values per token"),
    )

    def bytes_per_token(self, known: float | None, name: str) -> float:
        """Return the bytes that transfers move. name: of the option that needs them. Raises click.UsageError."""
        found = known if self.kv_bytes is None else self.kv_bytes
        if found is None:
            raise click.UsageError(f"{name} needs the bytes of a token, which the step model lacks; give --kv-bytes.")
        return float(found)


pool_options = settings_options(PoolOptions, {"prefill_replicas": registry_options(OPTIONS)})


def setup_of(
    asked: PoolOptions, decode: DecodeOptions, pools: tuple[Pool, Pool], devices: tuple[Device, Device], seed: int
) -> SimulationSetup:
    """Return the setup, without a seed of contents. pools: an engine of each of two pools. Raises click.UsageError,
    SettingsError."""
    first, second = pools
    prefill, decodes, split = asked.prefill_replicas, asked.decode_replicas, asked.split_replicas
    if prefill is None and decodes is None and split is None:
        _check_one_pool(asked, decode, bool(first.capacity.host_blocks or first.folder))
        return SimulationSetup(replace(first, scaling=_scaling(asked, "max_replicas", first.replicas)), seed=seed)
    for name, instead in (("max_replicas", "give --max-prefill-replicas, --max-decode-replicas"),
                          ("replicas", "leave it out")):  # fmt: skip
        if getattr(asked, name) is not None:
            raise click.UsageError(
                f"{option(name)} counts engines that do both prompts and decodes, and has no effect with two pools; "
                f"{instead}."
            )
    if split is not None and (prefill is not None or decodes is not None or split < 2):
        raise click.UsageError("--split-replicas searches the split of at least 2 engines; give it alone.")
    if split is None and (prefill is None or decodes is None or min(prefill, decodes) < 1):
        raise click.UsageError("--prefill-replicas and --decode-replicas go together, at least 1 each.")
    _check_blocks_move(first, second)
    link = _link(asked, devices)
    for name in MAX_OF_POOLS if split is not None else ():
        if getattr(asked, name) is not None:
            raise click.UsageError(
                f"{option(name)} scales a pool, and --split-replicas searches its size; leave one of them out."
            )
    first, second = (
        replace(pool, replicas=number or 1, scaling=_scaling(asked, name, number or 1))
        for pool, number, name in zip(pools, (prefill, decodes), MAX_OF_POOLS, strict=True)
    )
    if asked.replica_start_seconds is not None and not (first.scaling or second.scaling):
        raise click.UsageError(_NO_SCALING.format("--max-prefill-replicas or --max-decode-replicas"))
    disagg_mode = DisaggMode(asked.decode_asks or "after", asked.first_token or "decode")
    return SimulationSetup(first, second, link, seed, disagg_mode=disagg_mode)


def _check_one_pool(asked: PoolOptions, decode: DecodeOptions, moves: bool) -> None:
    """Refuse options of two pools. moves: whether blocks may move to a tier."""
    of_decode = [name for name in DecodeOptions.__slots__ if getattr(decode, name) is not None]
    transferred = (*_TRANSFER, *(() if moves else ("kv_bytes",)))
    others = [name for name in (*transferred, *_TWO_POOLS) if getattr(asked, name) is not None]
    for name in (*of_decode, *others):
        about = "transfers to a decode pool" if name in transferred else "pools for prefill and decode"
        raise click.UsageError(
            f"{option(name)} is about {about}; give --prefill-replicas and --decode-replicas, or --split-replicas, or "
            "leave it out."
        )
    if asked.replica_start_seconds is not None and asked.max_replicas is None:
        raise click.UsageError(_NO_SCALING.format("--max-replicas"))


def _check_blocks_move(first: Pool, second: Pool) -> None:
    """Raise SettingsError where engines with roles would refuse, or transfer more than is simulated."""
    for pool in (first, second):
        if not pool.settings.enable_prefix_caching:
            raise SettingsError(
                "Blocks of another engine are found in the prefix cache, and --no-prefix-caching is given; leave it "
                "out."
            )
        if pool.capacity.state_snapshots and not pool.capacity.state_blocks:
            raise SettingsError(
                "Disaggregated prefill and decode transfer checkpoints of recurrent state, and the step model does not "
                "say how large one is; calibrate again, or leave --prefill-replicas and --decode-replicas out."
            )


def _scaling(asked: PoolOptions, name: str, minimum: int) -> Scaling | None:
    maximum: int | None = getattr(asked, name)
    if maximum is None:
        return None
    if maximum < minimum:
        raise click.UsageError(
            f"{option(name)} is {maximum}, and there are {minimum} from the start; give {minimum} or more."
        )
    seconds = asked.replica_start_seconds
    return Scaling(maximum, START_SECONDS if seconds is None else seconds)


def _link(asked: PoolOptions, devices: tuple[Device, Device]) -> Link:
    """Return the link from one engine of the first pool; of GPUs as fast as the slower end's network cards, unless
    set."""
    gbps = asked.transfer_gbps
    if gbps is None and devices[0].link_gbps is not None and devices[1].link_gbps is not None:
        gbps = min(devices[0].link_gbps, devices[1].link_gbps)
    if gbps is None:
        raise click.UsageError("Keys and values must move between the pools; give --transfer-gbps, such as 100.")
    known = devices[0].known
    moved = asked.bytes_per_token(known.get("bytes_per_token"), "--transfer-gbps") / len(known.get("windows", (0,)))
    setup_ms = SETUP_MS if asked.transfer_setup_ms is None else asked.transfer_setup_ms
    return Link(moved, gbps, setup_ms / 1e3, devices[0].layers)
