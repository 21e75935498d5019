"""What a simulated engine runs on: a step model, and what is known of the engine's size, from `simulate`'s options.

Knows the options' names. A machine that was calibrated tells its engine's size; of a GPU it follows from its memory and
the model's shape, as in `inflight plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from inflight.cli.machines import check_machine, hardware_of
from inflight.cli.verb import grouped
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.models.arithmetic import paged_kv_bytes_per_token
from inflight.planning.machine import BLOCK_SIZE, MOST_ROWS, Machine
from inflight.simulate.all_reduce import NETWORK_SHARE
from inflight.simulate.fitted import FittedModel, NoisyModel
from inflight.simulate.latency import StepModel
from inflight.simulate.precision import ITEM_BYTES
from inflight.simulate.sources import Known, known_of, read_step_model

GPU_BUDGET = 2048  # tokens of a step on a GPU, unless given: some ridges of bf16, so that weights are read for many
DECODE = ("decode_hardware", "decode_tensor_parallel", "decode_step_model")
TRANSFER = ("transfer_gbps", "transfer_setup_ms")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

decode_options = grouped(
    "Replicas and pools",
    click.option("--decode-hardware", metavar="GPU", help="Of the decode pool; without it the same."),
    click.option(
        "--decode-tensor-parallel",
        type=int,
        help="GPUs of one engine of the decode pool; without it 1 on other hardware, else the same.",
    ),
    click.option("--decode-step-model", type=_FILE, help="Of the decode pool; without it the same."),
)


@dataclass(frozen=True, slots=True)
class Device:
    """model: what steps take. known: of the engine's size. cases: models at the slow and at the fast end of what is
    uncertain, where steps were not measured. host_bytes: of a token's keys and values as they are swapped, copies on
    several GPUs counted; None: not known. budget: tokens of a step unless given; None: as the engine chooses.
    link_gbps: gigabits per second that the network cards of an engine pass; None: not known."""

    model: StepModel
    known: Known
    cases: tuple[StepModel, ...] = ()
    host_bytes: float | None = None
    budget: int | None = None
    link_gbps: float | None = None

    @property
    def calibrated(self) -> bool:
        """Whether steps were measured."""
        return not self.cases

    @property
    def is_own(self) -> bool:
        """Whether they were steps of this engine, on a CPU. On a GPU a step of few tokens takes about as long as one of
        many, so that what spares tokens spares no time."""
        return self.calibrated and self.known.max_rows is not None

    def models(self, noise: bool, seed: int) -> Callable[[int], StepModel]:
        """For each replica by number; with noise each has its own."""
        model = self.model
        if not noise:
            return always(model)
        if not isinstance(model, FittedModel):
            raise SettingsError(
                "--noise draws from the scatter that `inflight calibrate` found; with --hardware nothing was measured, "
                "so leave it out."
            )
        return lambda number: NoisyModel(model, seed + 7919 * number)


def always(model: StepModel) -> Callable[[int], StepModel]:
    """The same for each replica."""
    return lambda number: model


def devices_of(values: dict[str, Any]) -> tuple[Device, Device]:
    """Of the engines, and of a second pool's. Raises click.UsageError, SettingsError, and the errors of step models,
    GPUs and shapes."""
    check_machine(values)
    if values["step_model"] is not None:
        _refuse(values, ("model", "decode_hardware", "decode_tensor_parallel"), "--hardware", "--step-model")
        first, path = _calibrated(values["step_model"]), values["decode_step_model"]
        return first, first if path is None else _calibrated(path)
    _refuse(values, ("decode_step_model", "kv_bytes"), "--step-model", "--hardware")
    first = _by_data_sheet(values)
    if values["decode_hardware"] is None and values["decode_tensor_parallel"] is None:
        return first, first
    return first, _by_data_sheet(values, "decode_")


def check_decode(values: dict[str, Any], swaps: bool) -> None:
    """Raises click.UsageError where something is said of a second pool, and there is none. swaps: whether blocks may
    move to the host."""
    sizes = () if swaps else ("kv_bytes",)
    for name in (*DECODE, *TRANSFER, *sizes):
        if values[name] is not None:
            about = "a pool" if name in DECODE else "what moves to a pool"
            raise click.UsageError(
                f"--{name.replace('_', '-')} is about {about} of engines for decodes; give --prefill-replicas and "
                "--decode-replicas, or --split-replicas, or leave it out."
            )


def _refuse(values: dict[str, Any], names: tuple[str, ...], about: str, given: str) -> None:
    for name in names:
        if values[name] is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} is about {about} and has no effect with {given}; leave it out.")


def _calibrated(path: Path) -> Device:
    model = read_step_model(path)
    known = known_of(model)
    in_all = known.bytes_per_token  # of which each KV group has its part
    return Device(model, known, host_bytes=None if in_all is None else in_all / len(known.windows))


def _by_data_sheet(values: dict[str, Any], pool: str = "") -> Device:
    hardware = hardware_of(values, pool)
    same_gpu = not pool or values["decode_hardware"] is None
    degree = values[f"{pool}tensor_parallel"]
    if degree is None and same_gpu:
        degree = values["tensor_parallel"]
    degree = 1 if degree is None else degree
    block_size = (
        BLOCK_SIZE if values["block_size"] is None else EngineSettings(block_size=values["block_size"]).block_size
    )
    machine = hardware.machine(degree, 1.0, block_size)
    if not machine.blocks:
        raise SettingsError(_no_room(machine))
    known = Known(
        num_blocks=machine.blocks,
        block_size=machine.block_size,
        max_rows=MOST_ROWS,
        max_model_len=machine.max_model_len,
        bytes_per_token=paged_kv_bytes_per_token(hardware.model, ITEM_BYTES[hardware.kv]),
        copy_seconds=machine.copy_seconds,
    )
    return Device(
        machine.model,
        known,
        cases=machine.cases,
        host_bytes=machine.block_bytes / machine.block_size,
        budget=GPU_BUDGET,
        link_gbps=8 * NETWORK_SHARE * hardware.gpu.between_nodes_gb_per_s * degree,
    )


def _no_room(machine: Machine) -> str:
    memory = machine.memory
    assert memory is not None
    reserved = memory.activation_bytes + memory.reserve_bytes + memory.state_bytes
    return (
        f"A GPU of {machine.name} has {memory.memory_bytes / 1e9:,.0f} GB, but its part of the weights takes "
        f"{memory.weight_bytes / 1e9:,.0f} GB, and activations and reserves "
        f"{reserved / 1e9:,.0f} GB, which leaves no KV block; raise "
        "--tensor-parallel, take fewer bytes for --weights, or GPUs with more memory."
    )
