"""Options of `inflight simulate` about one engine, and the pool of engines like it.

Knows what of an engine is given, measured or follows from the GPUs' memory; not how many there are.
"""

from __future__ import annotations

from typing import Any

import click

from inflight.cli.drafts import drafts_of
from inflight.cli.machines import Device
from inflight.cli.simulated_pools import kv_bytes
from inflight.cli.simulated_tiers import folder_of, host_rate_of
from inflight.cli.verb import grouped
from inflight.config.engine import DEFAULT_ROWS, EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.speculation import OFF, DraftSource, DraftSupport, resolve_speculation
from inflight.core.options import OptionValues
from inflight.core.types.plan import Capacity
from inflight.planning.machine import BLOCK_SIZE
from inflight.routing.registry import OPTIONS
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.simulation import Pool

engine_options = grouped(
    "Engine",
    click.option("--max-num-seqs", type=int, help="Most sequences running at once; as measured, or 256 on a GPU."),
    click.option("--max-num-batched-tokens", type=int, help="Most tokens of one step; of prompts 2,048 on a GPU."),
    click.option("--max-model-len", type=int, help="Most tokens of prompt and answer; as measured, or the model's."),
    click.option("--block-size", type=int, help="Tokens per KV block; as measured, or 16."),
    click.option("--num-blocks", type=int, help="KV blocks; as measured, or what the GPUs' memory holds."),
    click.option("--no-prefix-caching", is_flag=True, help="Share no prefixes."),
    click.option("--watermark", type=float, default=0.01, show_default=True, help="Share of blocks newcomers leave."),
)


def pool_of(device: Device, values: dict[str, Any], scheduling: SchedulingSettings, seed: int) -> Pool:
    """An engine like the measured one, or as large as the GPUs' memory, but for what is given."""
    if not device.is_own:
        scheduling = scheduling.ending_early(0)
    capacity = _capacity(device, values, scheduling)
    settings = EngineSettings(
        device=device.name,
        max_num_seqs=capacity.max_rows,
        max_num_batched_tokens=values["max_num_batched_tokens"],
        max_model_len=capacity.max_model_len,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=not values["no_prefix_caching"],
        watermark=values["watermark"],
        kv_eviction=values["kv_eviction"],
        kv_cache_host=values["kv_cache_host"],
        seed=seed,
    )
    models = device.models(values["noise"], seed)
    drafts = drafts_of(values, scheduling.draft_source.kind, seed)
    scheduling = scheduling.drafting_from(_draft_source(scheduling, capacity, drafts))
    replicas = 1 if values["replicas"] is None else values["replicas"]
    router_options = OptionValues({name: values[name] for name in OPTIONS if values[name] is not None})
    used = drafts if scheduling.draft_source.kind != "off" else None
    return Pool(
        capacity,
        settings,
        scheduling,
        models,
        replicas,
        values["router"],
        router_options,
        used,
        device.depth,
        host=host_rate_of(values, device, capacity),
        folder=folder_of(values, device, capacity),
    )


def _draft_source(scheduling: SchedulingSettings, capacity: Capacity, drafts: SimulatedDrafts | None) -> DraftSource:
    """In force on a model of this capacity, where something was said of its drafts. Raises SettingsError."""
    if drafts is None:
        return OFF
    return resolve_speculation(scheduling.draft_source, DraftSupport(has_state=capacity.state_snapshots > 0))[0]


def _capacity(device: Device, values: dict[str, Any], scheduling: SchedulingSettings) -> Capacity:
    known = device.known
    block_size = EngineSettings(block_size=_given(values["block_size"], known.get("block_size"), BLOCK_SIZE)).block_size
    num_blocks = values["num_blocks"]
    if num_blocks is None and "num_blocks" in known and "block_size" in known:
        num_blocks = known["num_blocks"] * known["block_size"] // block_size
    length = known.get("max_model_len") if values["max_model_len"] is None else values["max_model_len"]
    if num_blocks is None or length is None:
        missing = "--num-blocks" if num_blocks is None else "--max-model-len"
        raise click.UsageError(f"The step model does not say how large the measured engine was; give {missing}.")
    host_blocks = 0
    for option, gib in (("--swap-space", scheduling.swap_space), ("--kv-cache-host", values["kv_cache_host"])):
        if gib is not None:
            host_blocks += int(gib * 2**30 / (kv_bytes(device.host_bytes, values, option) * block_size))
    return Capacity(
        num_blocks=num_blocks,
        block_size=block_size,
        max_rows=_given(values["max_num_seqs"], known.get("max_rows"), DEFAULT_ROWS),
        max_model_len=length,
        vocab_size=known.get("vocab_size") or 32_000,
        host_blocks=host_blocks,
        copy_seconds=known.get("copy_seconds", 0.0) if host_blocks else 0.0,
        windows=tuple(known.get("windows", (0,))),
        state_snapshots=known.get("state_snapshots", 0),
        asynchronous_transfers=host_blocks > 0 and device.on_gpu,
    )


def _given(asked: int | None, known: int | None, else_: int) -> int:
    """What was asked for, 0 too, which the settings refuse."""
    return asked if asked is not None else known or else_
