"""Options for the machine of an engine, a GPU by its data sheet or this machine as calibrated; shared by plan, tune and
simulate. For simulate also the engine's size: as calibrated, or from a GPU's memory and the model's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from inflight.cli.progress import show
from inflight.cli.verb import grouped
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError, option
from inflight.core.types.sampling import DEFAULT_RANK
from inflight.models.errors import ModelError
from inflight.models.known import read_model
from inflight.models.registry import family_at
from inflight.models.sequence_memory import paged_kv_bytes_per_token
from inflight.models.spec import ModelSpec, WeightFormat
from inflight.planning.demand import Demand, traffic_of
from inflight.planning.machine import BLOCK_SIZE, DEFAULT_ROWS, Hardware, Machine, calibrated_machine
from inflight.simulate.fitted import EngineSize, FittedModel, NoisyModel
from inflight.simulate.hardware import ITEM_BYTES, find_gpu, read_hardware_file
from inflight.simulate.roofline import network_gbps
from inflight.simulate.sources import known_of, read_step_model
from inflight.simulate.steps import StepModel

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PRECISIONS = ("bf16", "fp8", "int8")  # of keys and values; of weights int4 too

hardware_options = grouped(
    "Machine",
    click.option(
        "--model",
        metavar="M",
        help="With --hardware: a well-known name (llama-3-70b), a folder, a config.json or a .gguf file.",
    ),
    click.option("--family", metavar="F", help="Of the model, if it is your own: package.module:NAME."),
    click.option("--hardware", metavar="GPU", is_eager=True, help="A GPU by name, such as a100-80 or h100."),
    click.option("--hardware-file", type=_FILE, help="TOML file of more GPUs, a table [gpus.NAME] each."),
    click.option(
        "--step-model",
        type=_FILE,
        is_eager=True,
        help="Instead of --hardware: this machine, from `inflight calibrate`.",
    ),
    click.option("--tensor-parallel", type=int, help="GPUs of one engine."),
    click.option(
        "--weights", type=click.Choice((*PRECISIONS, "int4")), default="bf16", show_default=True, help="Of the weights."
    ),
    click.option("--kv", type=click.Choice(PRECISIONS), default="bf16", show_default=True, help="Of keys and values."),
    click.option("--max-loras", type=int, help="Slots of adapters, which take memory from keys and values."),
    click.option("--max-lora-rank", type=int, help="That memory is set aside for; 16."),
)
machine_options = grouped(
    "Machine",
    hardware_options,
    click.option("--price", type=float, help="$ per GPU (or machine) and hour; GPUs may have an example price."),
)


def longest_of(values: dict[str, Any]) -> int:
    """Tokens of prompt and answer together that the model takes."""
    check_machine(values)
    if values["step_model"] is not None:
        return calibrated_machine(read_step_model(values["step_model"])).max_model_len
    return _model(values).default_model_len


def machines_of(values: dict[str, Any], demand: Demand) -> list[Machine]:
    """The ways to run one engine: the calibrated machine, or the GPU at every tensor-parallel degree that is possible
    (at the one that is given)."""
    check_machine(values)
    price = values["price"]
    if price is not None and not 0 < price < float("inf"):
        raise SettingsError(f"--price is {price:g}; give $ per hour, above 0.")
    if values["step_model"] is not None:
        return [calibrated_machine(read_step_model(values["step_model"]), price)]
    hardware = hardware_of(values)
    if price is None and hardware.gpu.price_per_hour is not None:
        example = hardware.gpu.price_per_hour
        show(f"Price: {example:g} $ per GPU and hour is an example; give yours with --price.")
    hardware = replace(hardware, price_per_hour=hardware.gpu.price_per_hour if price is None else price)
    degree = values["tensor_parallel"]
    context = traffic_of(demand).mean_context
    rows = values["max_num_seqs"] or DEFAULT_ROWS
    degrees = hardware.degrees() if degree is None and not hardware.max_loras else (degree or 1,)
    return [hardware.machine(one, context, rows=rows) for one in degrees]


def hardware_of(values: dict[str, Any], pool: str = "") -> Hardware:
    """The GPU with the model on it; of a second pool ("decode_") its GPU, if that is another."""
    others = () if values["hardware_file"] is None else read_hardware_file(values["hardware_file"])
    gpu = find_gpu(values[f"{pool}hardware"] or values["hardware"], others)
    for name in ("weights", "kv"):
        if not gpu.computes(values[name]):
            show(f"--{name} {values[name]}: {gpu.name} has no units for it, so that it saves memory but no arithmetic.")
    degree = values[f"{pool}tensor_parallel"]
    if degree is not None and degree > gpu.node_gpus:
        raise SettingsError(
            f"{option(pool)}tensor-parallel is {degree}, but a node has {gpu.node_gpus} of {gpu.name}, and "
            "between nodes every layer would wait for the network; give at most that, or say node-gpus in a "
            "--hardware-file."
        )
    model = _model(values)
    if values["weights"] == "bf16" and model.weight_format is not None and not pool:
        show(_wider_than_published(model.weight_format))
    EngineSettings(max_loras=values["max_loras"], max_lora_rank=values["max_lora_rank"])  # refuses what an engine does
    slots, rank = values["max_loras"] or 0, values["max_lora_rank"] or DEFAULT_RANK
    if slots and (degree or 1) > 1:
        raise SettingsError(
            f"--max-loras is {slots}, and {option(pool)}tensor-parallel {degree}: an engine with adapters has one GPU."
        )
    return Hardware(
        model=model, gpu=gpu, weights=values["weights"], kv=values["kv"], max_loras=slots, max_lora_rank=rank
    )


def _wider_than_published(published: WeightFormat) -> str:
    method, bits = published.method, published.bits
    in_four = bits == 4 or (published.element_bytes or 1.0) < 0.75
    narrow = "int4" if in_four else "fp8" if "fp8" in method else "int8"
    held = method if bits is None else f"{method}, {bits} bits"
    return f"Weights: they are published in {held}, and reckoned in bf16 all the same; --weights {narrow} is nearer."


def _model(values: dict[str, Any]) -> ModelSpec:
    place = values["family"]
    spec = read_model(values["model"], None if place is None else family_at(place))
    if spec.head is None:
        raise ModelError(
            f"{spec.name or spec.family} continues no texts, and plans are of models that do: answers of 0 tokens "
            "have no latency between tokens. `inflight bench` measures a server of it."
        )
    return spec


def check_machine(values: dict[str, Any]) -> None:
    """Raises click.UsageError where not exactly one kind of machine is named, or something has no effect with it."""
    if (values["step_model"] is None) == (values["hardware"] is None):
        raise click.UsageError(
            "--hardware (a GPU by its data sheet) and --step-model (this machine, from `inflight calibrate`) say what "
            "the engine runs on; give one of them."
        )
    if values["hardware"] is not None and values["model"] is None:
        raise click.UsageError("Missing option '--model': a well-known name, a folder or a config.json.")
    if values["step_model"] is not None:
        of_gpu = ("hardware_file", "tensor_parallel", "max_loras", "max_lora_rank")
        refuse(values, of_gpu, "--hardware", "--step-model")
        for name in ("weights", "kv"):
            if values[name] != "bf16":
                raise click.UsageError(f"--{name} has no effect with --step-model, which was measured; leave it out.")


DECODE = ("decode_hardware", "decode_tensor_parallel", "decode_step_model")
TRANSFER = ("transfer_gbps", "transfer_setup_ms")

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
    several GPUs counted; None: not known. name: as settings of an engine name it. depth: steps that an engine has in
    flight there. link_gbps: gigabits per second that the network cards of an engine pass; None: not known. layers: of
    the model, that may travel one by one; 1: not known."""

    model: StepModel
    known: EngineSize
    cases: tuple[StepModel, ...] = ()
    host_bytes: float | None = None
    name: str = "cpu"
    depth: int = 1
    link_gbps: float | None = None
    layers: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether defaults are those of an engine on a GPU."""
        return self.name.startswith("cuda")

    @property
    def calibrated(self) -> bool:
        """Whether steps were measured."""
        return not self.cases

    @property
    def is_own(self) -> bool:
        """Whether they were steps of this engine, on a CPU. On a GPU a step of few tokens takes about as long as one of
        many, so that what spares tokens spares no time."""
        return self.calibrated and not self.on_gpu and self.known.get("max_rows") is not None

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
    """Return the devices of the engines and of a second pool's. Raises click.UsageError, SettingsError, and the errors
    of step models, GPUs and shapes."""
    check_machine(values)
    if values["step_model"] is not None:
        refuse(values, ("model", "family", "decode_hardware", "decode_tensor_parallel"), "--hardware", "--step-model")
        first, path = _calibrated(values["step_model"]), values["decode_step_model"]
        return first, first if path is None else _calibrated(path)
    refuse(values, ("decode_step_model", "kv_bytes"), "--step-model", "--hardware")
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
                f"{option(name)} is about {about} of engines for decodes; give --prefill-replicas and "
                "--decode-replicas, or --split-replicas, or leave it out."
            )


def refuse(values: dict[str, Any], names: tuple[str, ...], about: str, given: str) -> None:
    """Raises click.UsageError where something is said of what is not there. given: instead of which."""
    for name in names:
        if values[name] is not None:
            raise click.UsageError(f"{option(name)} is about {about} and has no effect with {given}; leave it out.")


def _calibrated(path: Path) -> Device:
    model = read_step_model(path)
    known = known_of(model)
    in_all = known.get("bytes_per_token")  # of which each KV group has its part
    return Device(
        model,
        known,
        host_bytes=None if in_all is None else in_all / len(known.get("windows", (0,))),
        name=model.device,
        depth=model.depth,
    )


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
    rows = values["max_num_seqs"] or DEFAULT_ROWS
    machine = hardware.machine(degree, 1.0, block_size, rows)
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
        known["state_snapshots"] = machine.state_snapshots
    return Device(
        machine.model,
        known,
        cases=machine.cases,
        host_bytes=machine.block_bytes / machine.block_size,
        name=machine.device,
        depth=machine.depth,
        link_gbps=network_gbps(hardware.gpu, degree),
        layers=len(hardware.model.layers),
    )


def _no_room(machine: Machine, rows: int) -> str:
    memory = machine.memory
    assert memory is not None
    reserved, states = memory.activation_bytes + memory.reserve_bytes, memory.state_bytes
    of_states, fewer = "", ""
    if states:
        of_states = f", recurrent states of {rows:,} sequences {states / 1e9:,.0f} GB"
        fewer = " lower --max-num-seqs,"
    return (
        f"A GPU of {machine.name} has {memory.memory_bytes / 1e9:,.0f} GB, but its part of the weights takes "
        f"{memory.weight_bytes / 1e9:,.0f} GB{of_states}, and activations and reserves {reserved / 1e9:,.0f} GB, which "
        f"leaves no KV block;{fewer} raise --tensor-parallel, take fewer bytes for --weights, or GPUs with more memory."
    )
