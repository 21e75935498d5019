"""Options of plan for the layouts that are compared: pools, their link, and tiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

from inflight.cli.simulated_engine import DISK_SETUP_MS, SETUP_MS
from inflight.config.setting import SettingsError, above_zero, check_settings, option, setting
from inflight.planning.machine import Machine
from inflight.planning.question import LayoutQuestion
from inflight.planning.simulation import Tiers
from inflight.simulate.collectives import network_gbps
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.transfers import Folder, TransferRate


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Layouts to compare."""

    compare_layouts: bool = setting(
        False, "Also size whole prompts, chunked prefill, and disaggregated prefill and decode.", "Layouts"
    )
    transfer_gbps: float | None = setting(
        None,
        "Gbit/s between engines; with --hardware the network cards' unless set.",
        bound=above_zero("gigabits per second"),
    )
    decode_asks: Literal["after", "first"] | None = setting(None, "As in `inflight simulate`.", is_choice=True)
    kv_cache_host: float | None = setting(
        None, "Also with this much of each host, as in `inflight serve`.", bound=above_zero("GiB"), metavar="GiB"
    )
    kv_cache_disk: float | None = setting(
        None, "Also with a folder of this size.", bound=above_zero("GiB"), metavar="GiB"
    )
    kv_disk_read_gb_per_s: float | None = setting(
        None, "GB/s of reading blocks from the folder.", bound=above_zero("gigabytes per second")
    )
    kv_disk_write_gb_per_s: float | None = setting(
        None, "GB/s of writing blocks into it.", bound=above_zero("gigabytes per second")
    )

    def __post_init__(self) -> None:
        check_settings(self)


def layouts_of(asked: LayoutOptions) -> LayoutQuestion | None:
    """Return the layouts to compare; None: none. Raises click.UsageError."""
    if not asked.compare_layouts:
        for name in asked.__slots__[1:]:
            if getattr(asked, name) is not None:
                raise click.UsageError(
                    f"{option(name)} has no effect without --compare-layouts; give that too, or leave it out."
                )
        return None
    disk, read, write = asked.kv_cache_disk, asked.kv_disk_read_gb_per_s, asked.kv_disk_write_gb_per_s
    if len({one is None for one in (disk, read, write)}) > 1:
        raise click.UsageError(
            "--kv-cache-disk, --kv-disk-read-gb-per-s and --kv-disk-write-gb-per-s go together: the size of the "
            "folder, and the rates of its disk."
        )

    def tiers(machine: Machine) -> tuple[Tiers, ...]:
        found = []
        if asked.kv_cache_host is not None:
            _check_known(machine, asked.kv_cache_host, "--kv-cache-host")
            found.append(Tiers(host_gib=asked.kv_cache_host))
        if disk is not None and read is not None and write is not None:
            _check_known(machine, disk, "--kv-cache-disk")
            rates = (TransferRate(machine.block_bytes / (rate * 1e9), DISK_SETUP_MS / 1e3) for rate in (read, write))
            found.append(Tiers(folder=Folder(int(disk * 2**30 / machine.block_bytes), *rates)))
        return tuple(found)

    modes = (DisaggMode(asked.decode_asks or "after"),)
    return LayoutQuestion(lambda machine: _link(machine, asked.transfer_gbps), modes, tiers)


def _check_known(machine: Machine, gib: float, name: str) -> None:
    if not machine.block_bytes:
        raise SettingsError(
            f"{name} is {gib:g} GiB, and the step model does not say how many bytes a block has; calibrate again, or "
            "leave it out."
        )


def _link(machine: Machine, gbps: float | None) -> Link | None:
    gpu, spec = getattr(machine.model, "gpu", None), getattr(machine.model, "spec", None)
    if gbps is None and gpu is not None:
        gbps = network_gbps(gpu, machine.gpus)
    if gbps is None or not machine.block_bytes:
        return None
    layers = 1 if spec is None else len(spec.layers)
    return Link(machine.block_bytes / machine.block_size, gbps, SETUP_MS / 1e3, layers)
