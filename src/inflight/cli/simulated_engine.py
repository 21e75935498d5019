"""Options of `inflight simulate` for one engine and its KV tiers, and the pool of engines like it.

Sizes are as given, as calibrated, or as follows from the GPUs' memory; rates of tiers as given, as calibrated, as data
sheets say, or as a folder's disk is measured now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from inflight.cli.declared import registry_options, settings_options
from inflight.cli.drafts import DraftOptions
from inflight.cli.machines import DecodeOptions
from inflight.config.engine import DEFAULT_ROWS, EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError, above_zero, at_least, check_settings, option, setting
from inflight.config.speculation import OFF, DraftSupport, resolve_speculation
from inflight.core.options import OptionValues
from inflight.core.types.plan import Capacity
from inflight.models.sequence_memory import host_checkpoints
from inflight.planning.device import Device
from inflight.planning.machine import BLOCK_SIZE
from inflight.routing.registry import OPTIONS, ROUTERS
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.engine_costs import front_end_costs
from inflight.simulate.fitted import FittedModel
from inflight.simulate.replicas import START_SECONDS, Scaling
from inflight.simulate.simulation import Pool, SimulationSetup
from inflight.simulate.transfers import Folder, TransferRate

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
    front_end = front_end_costs(devices[0].engine)
    prefill, decodes, split = asked.prefill_replicas, asked.decode_replicas, asked.split_replicas
    if prefill is None and decodes is None and split is None:
        _check_one_pool(asked, decode, bool(first.capacity.host_blocks or first.folder))
        scaled = replace(first, scaling=_scaling(asked, "max_replicas", first.replicas))
        return SimulationSetup(scaled, seed=seed, front_end=front_end)
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
    return SimulationSetup(first, second, link, seed, disagg_mode=disagg_mode, front_end=front_end)


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


DEFAULT_GIB = 10.0
DISK_SETUP_MS = 0.2  # of a transfer: threads are notified, files are opened
_NAMES = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks", "enable_prefix_caching"),
    *("watermark", "kv_eviction", "kv_cache_host"),
)
_RATES = ("kv_disk_read_gb_per_s", "kv_disk_write_gb_per_s", "kv_disk_setup_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """The engine's own settings that a simulation has; None: as measured, or as on a GPU."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    block_size: int | None
    num_blocks: int | None
    enable_prefix_caching: bool
    watermark: float
    kv_eviction: Any
    kv_cache_host: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """A folder of blocks, and how fast tiers are."""

    kv_cache_disk: float | None = setting(
        None, "GiB of blocks in a folder.", "Tiers", bound=above_zero(unit="GiB"), metavar="GiB"
    )
    kv_cache_dir: Path | None = setting(
        None,
        "Measure the disk of this folder, where its rates are not given; nothing stays in it.",
        metavar="DIR",
        path="present folder",
    )
    kv_host_gb_per_s: float | None = setting(
        None,
        "GB/s of copies to the host and back; as calibrated, or the GPU's, unless set.",
        bound=above_zero("gigabytes per second"),
    )
    kv_disk_read_gb_per_s: float | None = setting(
        None, "GB/s of reading blocks from the folder.", bound=above_zero("gigabytes per second")
    )
    kv_disk_write_gb_per_s: float | None = setting(
        None, "GB/s of writing blocks into it.", bound=above_zero("gigabytes per second")
    )
    kv_disk_setup_ms: float | None = setting(
        None, f"Milliseconds before each transfer; {DISK_SETUP_MS:g} unless set.", bound=at_least(0, "milliseconds")
    )

    def __post_init__(self) -> None:
        check_settings(self)


engine_options = settings_options(EngineSettings, only=_NAMES, unset=("block_size",))


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """The options of one simulated engine and of the pools that it is in."""

    size: SizeOptions
    tiers: TierOptions
    drafts: DraftOptions
    pools: PoolOptions
    noise: bool

    def pool(self, device: Device, scheduling: SchedulingSettings, router_options: OptionValues, seed: int) -> Pool:
        """Return a pool of engines like the measured one, or as large as the GPUs' memory, but for what is given.
        Raises click.UsageError, SettingsError."""
        if not device.is_own:
            scheduling = scheduling.ending_early(0)
        capacity = self._capacity(device, scheduling)
        settings = EngineSettings(
            device=device.name,
            max_num_seqs=capacity.max_rows,
            max_num_batched_tokens=self.size.max_num_batched_tokens,
            max_model_len=capacity.max_model_len,
            block_size=capacity.block_size,
            num_blocks=capacity.num_blocks,
            enable_prefix_caching=self.size.enable_prefix_caching,
            watermark=self.size.watermark,
            kv_eviction=self.size.kv_eviction,
            kv_cache_host=self.size.kv_cache_host,
            seed=seed,
        )
        models = device.models(self.noise, seed)
        drafts, source = self.drafts.drafts_for(scheduling.draft_source.kind, seed), OFF
        if drafts is not None:
            support = DraftSupport(has_state=capacity.state_snapshots > 0)
            source = resolve_speculation(scheduling.draft_source, support)[0]
        return Pool(
            capacity,
            settings,
            scheduling.drafting_from(source),
            models,
            1 if self.pools.replicas is None else self.pools.replicas,
            self.pools.router,
            router_options,
            drafts if source.kind != "off" else None,
            device.depth,
            host=self._host_rate(device, capacity),
            folder=self._folder(device, capacity),
        )

    def _capacity(self, device: Device, scheduling: SchedulingSettings) -> Capacity:
        known, size = device.known, self.size
        block_size = EngineSettings(block_size=_given(size.block_size, known.get("block_size"), BLOCK_SIZE)).block_size
        num_blocks = size.num_blocks
        if num_blocks is None and "num_blocks" in known and "block_size" in known:
            num_blocks = known["num_blocks"] * known["block_size"] // block_size
        length = known.get("max_model_len") if size.max_model_len is None else size.max_model_len
        if num_blocks is None or length is None:
            missing = "--num-blocks" if num_blocks is None else "--max-model-len"
            raise click.UsageError(f"The step model does not say how large the measured engine was; give {missing}.")
        host_blocks, snapshots, state_blocks = 0, known.get("state_snapshots", 0), known.get("state_blocks", 0)
        for name, gib in (("--swap-space", scheduling.swap_space), ("--kv-cache-host", size.kv_cache_host)):
            if gib is not None:
                block_bytes = self.pools.bytes_per_token(device.host_bytes, name) * block_size
                blocks = gib * 2**30 / block_bytes
                of_states = 0
                if name == "--kv-cache-host" and not device.on_gpu:  # as an engine does
                    of_states = host_checkpoints(blocks, state_blocks)
                host_blocks, snapshots = host_blocks + int(blocks - of_states * state_blocks), snapshots + of_states
        return Capacity(
            num_blocks=num_blocks,
            block_size=block_size,
            max_rows=_given(size.max_num_seqs, known.get("max_rows"), DEFAULT_ROWS),
            max_model_len=length,
            vocab_size=known.get("vocab_size") or 32_000,
            host_blocks=host_blocks,
            copy_seconds=known.get("copy_seconds", 0.0) if host_blocks else 0.0,
            windows=tuple(known.get("windows", (0,))),
            state_snapshots=snapshots,
            state_blocks=state_blocks,
            asynchronous_transfers=host_blocks > 0 and device.on_gpu,
        )

    def _host_rate(self, device: Device, capacity: Capacity) -> TransferRate | None:
        """Return the rate of copies to the host and back; None: as in the step model, or no blocks are on the host."""
        given = self.tiers.kv_host_gb_per_s
        if not capacity.host_blocks:
            if given is not None:
                raise click.UsageError(
                    "--kv-host-gb-per-s is about blocks on the host, and there are none; give --kv-cache-host or "
                    "--swap-space, or leave it out."
                )
            return None
        if given is not None:
            block_bytes = self.pools.bytes_per_token(device.host_bytes, "--kv-host-gb-per-s") * capacity.block_size
            return TransferRate(block_bytes / (given * 1e9))
        if device.on_gpu:
            return TransferRate(capacity.copy_seconds)
        if isinstance(device.model, FittedModel) and device.model.moved_block:
            return None
        if capacity.copy_seconds:
            return TransferRate(capacity.copy_seconds)
        if self.size.kv_cache_host is None:
            return None  # swapping alone, whose copies were not measured either
        raise click.UsageError(
            "The engine was calibrated without memory on the host, so the time of copies is not known; give "
            "--kv-host-gb-per-s, or calibrate with --kv-cache-host."
        )

    def _folder(self, device: Device, capacity: Capacity) -> Folder | None:
        """Return the folder of blocks, if there is one. Raises click.UsageError, SettingsError."""
        asked = self.tiers
        if asked.kv_cache_disk is None and asked.kv_cache_dir is None:
            if unused := [name for name in _RATES if getattr(asked, name) is not None]:
                raise click.UsageError(
                    f"{option(unused[0])} is about a folder of blocks, and there is none; give --kv-cache-disk, or "
                    "leave it out."
                )
            return None
        if not self.size.enable_prefix_caching:
            raise SettingsError(
                "A folder stores blocks of the prefix cache, and --no-prefix-caching is given; leave it out."
            )
        if capacity.state_snapshots and not capacity.state_blocks:
            raise SettingsError(
                "A folder stores checkpoints of recurrent state, and the step model does not say how large one is; "
                "calibrate again, or leave --kv-cache-disk out."
            )
        block_bytes = self.pools.bytes_per_token(device.host_bytes, "--kv-cache-disk") * capacity.block_size
        read, write = (rate and rate * 1e9 for rate in (asked.kv_disk_read_gb_per_s, asked.kv_disk_write_gb_per_s))
        if read is None or write is None:
            measured = _measured(asked.kv_cache_dir, int(block_bytes))
            read, write = read or measured[0], write or measured[1]
        setup = (DISK_SETUP_MS if asked.kv_disk_setup_ms is None else asked.kv_disk_setup_ms) / 1e3
        blocks = int((asked.kv_cache_disk or DEFAULT_GIB) * 2**30 / block_bytes)
        return Folder(blocks, TransferRate(block_bytes / read, setup), TransferRate(block_bytes / write, setup))


def router_options_of(values: dict[str, Any]) -> OptionValues:
    """Return the options of routers among a verb's arguments."""
    return OptionValues({name: values[name] for name in OPTIONS if values[name] is not None})


def _measured(folder: Path | None, block_bytes: int) -> tuple[float, float]:
    """Return bytes per second of reading and of writing. Raises click.UsageError, SettingsError."""
    if folder is None:
        raise click.UsageError(
            "A folder's disk takes time to read and to write; give --kv-disk-read-gb-per-s and "
            "--kv-disk-write-gb-per-s, or a folder on it with --kv-cache-dir, where that is measured."
        )
    from inflight.execution.kv.offload.disk_rates import measured_rates  # it imports the execution of models

    try:
        rates = measured_rates(folder, block_bytes)
    except OSError as error:
        raise SettingsError(
            f"--kv-cache-dir {folder} cannot be measured ({error.strerror or error}); give another folder, or the "
            "rates themselves."
        ) from error
    return rates.read, rates.write


def _given(asked: int | None, known: int | None, default: int) -> int:
    """Return the number that was asked for, even 0, which the settings refuse; else a known one."""
    return asked if asked is not None else known or default
