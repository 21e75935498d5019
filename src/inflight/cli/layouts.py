"""Options of `inflight plan` for layouts: the link between engines, and tiers for keys and values."""

from __future__ import annotations

import math
from typing import Any

import click

from inflight.cli.simulated_pools import SETUP_MS
from inflight.cli.simulated_tiers import DISK_SETUP_MS
from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError, option
from inflight.planning.machine import Machine
from inflight.planning.simulation import Tiers
from inflight.planning.sizing import LayoutQuestion
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.roofline import network_gbps
from inflight.simulate.transfers import Folder, TransferRate

_POSITIVE = {
    "transfer_gbps": "gigabits per second",
    "kv_cache_host": "GiB",
    "kv_cache_disk": "GiB",
    "kv_disk_read_gb_per_s": "gigabytes per second",
    "kv_disk_write_gb_per_s": "gigabytes per second",
}

layout_options = grouped(
    "Layouts",
    click.option(
        "--compare-layouts",
        is_flag=True,
        help="Also find what whole prompts, chunks, and prefill and decode on engines of their own would need.",
    ),
    click.option("--transfer-gbps", type=float, help="Gigabits per second between engines; of GPUs their cards'."),
    click.option("--decode-asks", type=click.Choice(("after", "first")), help="As of `inflight simulate`."),
    click.option(
        "--kv-cache-host", type=float, metavar="GiB", help="Also with this of each host, as `inflight serve`."
    ),
    click.option("--kv-cache-disk", type=float, metavar="GiB", help="Also with a folder that holds this."),
    click.option("--kv-disk-read-gb-per-s", type=float, help="Reading blocks from the folder."),
    click.option("--kv-disk-write-gb-per-s", type=float, help="Writing them."),
)


def layouts_of(values: dict[str, Any]) -> LayoutQuestion | None:
    """Return the layouts to compare; None: none. Raises click.UsageError, SettingsError."""
    for name, unit in _POSITIVE.items():
        given = values[name]
        if given is not None and not 0 < given < math.inf:
            raise SettingsError(f"{option(name)} is {given:g}; give {unit}, above 0.")
    if not values["compare_layouts"]:
        for name in (*_POSITIVE, "decode_asks"):
            if values[name] is not None:
                raise click.UsageError(
                    f"{option(name)} has no effect without --compare-layouts; give that too, or leave it out."
                )
        return None
    read, write = values["kv_disk_read_gb_per_s"], values["kv_disk_write_gb_per_s"]
    if (values["kv_cache_disk"] is None) != (read is None) or (read is None) != (write is None):
        raise click.UsageError(
            "--kv-cache-disk, --kv-disk-read-gb-per-s and --kv-disk-write-gb-per-s go together: how much the folder "
            "holds, and how fast its disk is."
        )
    gbps, host, disk = values["transfer_gbps"], values["kv_cache_host"], values["kv_cache_disk"]

    def tiers(machine: Machine) -> tuple[Tiers, ...]:
        found = []
        if host is not None:
            found.append(Tiers(host_gib=_known(machine, host, "--kv-cache-host")))
        if disk is not None:
            size = _known(machine, disk, "--kv-cache-disk") * 2**30 / machine.block_bytes
            rates = (TransferRate(machine.block_bytes / (rate * 1e9), DISK_SETUP_MS / 1e3) for rate in (read, write))
            found.append(Tiers(folder=Folder(int(size), *rates)))
        return tuple(found)

    return LayoutQuestion(lambda machine: _link(machine, gbps), (DisaggMode(values["decode_asks"] or "after"),), tiers)


def _known(machine: Machine, gib: float, name: str) -> float:
    if not machine.block_bytes:
        raise SettingsError(
            f"{name} is {gib:g} GiB, and the step model does not say how many bytes a block has; calibrate anew, or "
            "leave it out."
        )
    return gib


def _link(machine: Machine, gbps: float | None) -> Link | None:
    gpu = getattr(machine.model, "gpu", None)
    if gbps is None and gpu is not None:
        gbps = network_gbps(gpu, machine.gpus)
    if gbps is None or not machine.block_bytes:
        return None
    spec = getattr(machine.model, "spec", None)
    layers = 1 if spec is None else len(spec.layers)
    return Link(machine.block_bytes / machine.block_size, gbps, SETUP_MS / 1e3, layers)
