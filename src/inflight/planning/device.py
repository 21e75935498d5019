"""The device of a simulated engine: its step times, and the engine's size as far as it is known.

As calibrated on a machine, or from a GPU's data sheet and the model's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inflight.config.setting import SettingsError
from inflight.models.sequence_memory import paged_kv_bytes_per_token
from inflight.planning.machine import DEFAULT_ROWS, Hardware, Machine
from inflight.simulate.collectives import network_gbps
from inflight.simulate.engine_costs import EngineCosts
from inflight.simulate.fitted import EngineSize, FittedModel, NoisyModel
from inflight.simulate.hardware import ITEM_BYTES
from inflight.simulate.parallelism import Parallelism
from inflight.simulate.sources import read_step_model
from inflight.simulate.steps import StepModel


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a simulated engine.

    Attributes:
        model: step times.
        known: the engine's size, as far as it is known.
        cases: step times at the slow and at the fast end of what is uncertain, where steps were not measured.
        host_bytes: bytes of a token's keys and values when swapped, with copies on several GPUs; None: not known.
        name: as engine settings name the device.
        depth: steps in flight.
        link_gbps: Gbit/s of an engine's network cards; None: not known.
        layers: of the model, which may travel one by one; 1: not known.
        engine: costs of its host; None: steps were measured with them.
    """

    model: StepModel
    known: EngineSize
    cases: tuple[StepModel, ...] = ()
    host_bytes: float | None = None
    name: str = "cpu"
    depth: int = 1
    link_gbps: float | None = None
    layers: int = 1
    engine: EngineCosts | None = None

    @property
    def on_gpu(self) -> bool:
        """Return whether defaults are those of an engine on a GPU."""
        return self.name.startswith("cuda")

    @property
    def calibrated(self) -> bool:
        """Return whether steps were measured."""
        return not self.cases

    @property
    def is_own(self) -> bool:
        """Return whether steps of this engine were measured, on a CPU. On a GPU a step of few tokens takes about as
        long as one of many, so that fewer tokens spare no time."""
        return self.calibrated and not self.on_gpu and self.known.get("max_rows") is not None

    def models(self, noise: bool, seed: int) -> Callable[[int], StepModel]:
        """Return the step model of each replica by its number; with noise each has its own. Raises SettingsError."""
        model = self.model
        if not noise:
            return always(model)
        if not isinstance(model, FittedModel):
            raise SettingsError(
                "--noise draws from the scatter that `inflight calibrate` measured, and with --hardware nothing was "
                "measured; leave it out."
            )
        return lambda number: NoisyModel(model, seed + 7919 * number)


def always(model: StepModel) -> Callable[[int], StepModel]:
    """Return the same step model for each replica."""
    return lambda number: model


def calibrated_device(path: Path) -> Device:
    """Return the device that a step model was measured on. Raises StepModelError."""
    model = read_step_model(path)
    known = model.engine_size
    in_all = known.get("bytes_per_token")  # of which each KV group has its part
    return Device(
        model,
        known,
        host_bytes=None if in_all is None else in_all / len(known.get("windows", (0,))),
        name=model.device,
        depth=model.depth,
    )


def device_by_data_sheet(
    hardware: Hardware, parallelism: Parallelism, block_size: int, max_num_seqs: int | None
) -> Device:
    """Return the GPUs of an engine with their model, as the data sheet has them. Raises SettingsError where no KV block
    has room."""
    rows = max_num_seqs or DEFAULT_ROWS
    machine = hardware.machine(parallelism, 1.0, block_size, rows)
    if not machine.blocks:
        raise SettingsError(_no_room(machine, rows))
    known = EngineSize(
        num_blocks=machine.blocks,
        block_size=machine.block_size,
        max_rows=rows,
        max_model_len=machine.max_model_len,
        bytes_per_token=paged_kv_bytes_per_token(hardware.model, ITEM_BYTES[hardware.kv]),
        copy_seconds=machine.copy_seconds,
    )
    if machine.state_snapshots:
        known["state_snapshots"], known["state_blocks"] = machine.state_snapshots, machine.state_blocks
    return Device(
        machine.model,
        known,
        cases=machine.cases,
        host_bytes=machine.block_bytes / machine.block_size,
        name=machine.device,
        depth=machine.depth,
        link_gbps=network_gbps(hardware.gpu, parallelism.gpus),
        layers=len(hardware.model.layers),
        engine=machine.engine,
    )


def _no_room(machine: Machine, rows: int) -> str:
    memory = machine.memory
    assert memory is not None
    reserved, states = memory.activation_bytes + memory.reserve_bytes, memory.state_bytes
    of_states = f", recurrent states of {rows:,} sequences {states / 1e9:,.0f} GB" if states else ""
    fewer = " lower --max-num-seqs," if states else ""
    return (
        f"A GPU of {machine.name} has {memory.memory_bytes / 1e9:,.0f} GB, but its part of the weights takes "
        f"{memory.weight_bytes / 1e9:,.0f} GB{of_states}, and activations and reserves {reserved / 1e9:,.0f} GB, which "
        f"leaves no KV block;{fewer} raise --tensor-parallel, take fewer bytes for --weights, or GPUs with more memory."
    )
