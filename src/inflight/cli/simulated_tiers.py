"""Options of `inflight simulate` about where keys and values are kept beyond the device, as of `inflight serve`, and
how fast that is: as given, as calibrated, as data sheets say, or as a folder's disk is measured now.

Knows bytes and seconds; what is kept and brought back, the engine's own rules decide.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from inflight.cli.machines import Device
from inflight.cli.simulated_pools import kv_bytes
from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError, option
from inflight.core.types.plan import Capacity
from inflight.execution.tiers.disk_rates import DiskRates, measured_rates
from inflight.simulate.fitted import FittedModel
from inflight.simulate.transfers import Folder, TransferRate

DEFAULT_GIB = 10.0
DISK_SETUP_MS = 0.2  # of a transfer: threads are told, files are opened

tier_options = grouped(
    "Tiers",
    click.option("--kv-eviction", default="lru", show_default=True, help="As of `inflight serve`: lru or sessions."),
    click.option("--kv-cache-host", type=float, metavar="GiB", help="As of `inflight serve`."),
    click.option("--kv-cache-disk", type=float, metavar="GiB", help="That a folder of blocks may hold."),
    click.option(
        "--kv-cache-dir",
        type=click.Path(file_okay=False, exists=True, path_type=Path),
        metavar="DIR",
        help="Measure the disk of this folder, where its rates are not given; nothing is left in it.",
    ),
    click.option("--kv-host-gb-per-s", type=float, help="Copies to the host and back; as calibrated, or of the GPU."),
    click.option("--kv-disk-read-gb-per-s", type=float, help="Reading blocks from the folder."),
    click.option("--kv-disk-write-gb-per-s", type=float, help="Writing them."),
    click.option("--kv-disk-setup-ms", type=float, help=f"That every transfer takes; {DISK_SETUP_MS:g} unless set."),
)


def host_rate_of(values: dict[str, Any], device: Device, capacity: Capacity) -> TransferRate | None:
    """Of copies to the host and back; None: as the step model has them, or there are none. Raises click.UsageError,
    SettingsError."""
    given = _rate(values, "kv_host_gb_per_s")
    if not capacity.host_blocks:
        if given is not None:
            raise click.UsageError(
                "--kv-host-gb-per-s is about blocks on the host, and there are none; give --kv-cache-host or "
                "--swap-space, or leave it out."
            )
        return None
    if given is not None:
        return TransferRate(kv_bytes(device.host_bytes, values, "--kv-host-gb-per-s") * capacity.block_size / given)
    if device.on_gpu:
        return TransferRate(capacity.copy_seconds)
    if isinstance(device.model, FittedModel) and device.model.moved_block:
        return None
    if capacity.copy_seconds:
        return TransferRate(capacity.copy_seconds)
    if values["kv_cache_host"] is None:
        return None  # swapping alone, whose copies were not measured either
    raise click.UsageError(
        "The engine was calibrated without memory on the host, so that nothing is known of what copies take; give "
        "--kv-host-gb-per-s, or calibrate with --kv-cache-host."
    )


def folder_of(values: dict[str, Any], device: Device, capacity: Capacity) -> Folder | None:
    """None: there is none. Raises click.UsageError, SettingsError."""
    gib, where = values["kv_cache_disk"], values["kv_cache_dir"]
    read, write = _rate(values, "kv_disk_read_gb_per_s"), _rate(values, "kv_disk_write_gb_per_s")
    setup_ms = values["kv_disk_setup_ms"]
    if gib is None and where is None:
        for name in ("kv_disk_read_gb_per_s", "kv_disk_write_gb_per_s", "kv_disk_setup_ms"):
            if values[name] is not None:
                raise click.UsageError(
                    f"{option(name)} is about a folder of blocks, and there is none; give --kv-cache-disk, or leave it "
                    "out."
                )
        return None
    gib = DEFAULT_GIB if gib is None else gib
    if not 0 < gib < math.inf:
        raise SettingsError(f"--kv-cache-disk is {gib:g} GiB; give a number above 0.")
    if setup_ms is not None and not 0 <= setup_ms < math.inf:
        raise SettingsError(f"--kv-disk-setup-ms is {setup_ms:g}; give milliseconds, from 0.")
    if values["no_prefix_caching"]:
        raise SettingsError(
            "A folder keeps what the prefix cache holds, and --no-prefix-caching is given; leave it out."
        )
    if capacity.windows != (0,) or capacity.state_snapshots:
        raise SettingsError(
            f"A folder keeps blocks of one KV group, and this model has {len(capacity.windows)} of them and "
            f"{capacity.state_snapshots} snapshots of recurrent state; leave --kv-cache-disk out."
        )
    block_bytes = kv_bytes(device.host_bytes, values, "--kv-cache-disk") * capacity.block_size
    if read is None or write is None:
        if where is None:
            raise click.UsageError(
                "A folder's disk takes time to read and to write; give --kv-disk-read-gb-per-s and "
                "--kv-disk-write-gb-per-s, or a folder on it with --kv-cache-dir, where that is measured."
            )
        measured = _measured(where, int(block_bytes))
        read, write = read or measured.read, write or measured.write
    setup = (DISK_SETUP_MS if setup_ms is None else setup_ms) / 1e3
    blocks = int(gib * 2**30 / block_bytes)
    return Folder(blocks, TransferRate(block_bytes / read, setup), TransferRate(block_bytes / write, setup))


def _measured(folder: Path, block_bytes: int) -> DiskRates:
    """Raises SettingsError."""
    try:
        return measured_rates(folder, block_bytes)
    except OSError as error:
        raise SettingsError(
            f"--kv-cache-dir {folder} cannot be measured ({error.strerror or error}); give another folder, or the "
            "rates themselves."
        ) from error


def _rate(values: dict[str, Any], name: str) -> float | None:
    """Bytes per second. Raises SettingsError."""
    given = values[name]
    if given is not None and not 0 < given < math.inf:
        raise SettingsError(f"{option(name)} is {given:g}; give gigabytes per second, above 0.")
    return None if given is None else given * 1e9
