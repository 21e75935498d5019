"""The machine of an engine, by options of plan, tune and simulate: a GPU by its data sheet, or a calibrated machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click
from msgspec import structs

from inflight.cli.declared import settings_options
from inflight.cli.summary import show
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError, above_zero, check_settings, option, setting
from inflight.core.types.sampling import DEFAULT_RANK
from inflight.models.errors import ModelError
from inflight.models.known import read_model
from inflight.models.registry import family_at
from inflight.models.spec import ModelSpec, WeightFormat
from inflight.planning.demand import Demand, traffic_of
from inflight.planning.device import Device, calibrated_device, device_by_data_sheet
from inflight.planning.machine import BLOCK_SIZE, DEFAULT_ROWS, Hardware, calibrated_machine
from inflight.planning.parallelisms import Machines, machines_for
from inflight.simulate.engine_costs import OWN, EngineCosts, engine_costs
from inflight.simulate.hardware import Gpu, find_gpu, nearest_precision, read_hardware_file
from inflight.simulate.parallelism import ONE_GPU, Parallelism
from inflight.simulate.sources import read_step_model


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """The machine of one engine."""

    model: str | None = setting(
        None,
        "With --hardware: a name or hub id (llama-3-70b), a folder, a config.json or a .gguf file.",
        "Machine",
        metavar="M",
    )
    family: str | None = setting(None, "Family of a model of your own: package.module:NAME.", metavar="F")
    hardware: str | None = setting(
        None, "A GPU or processor by name, such as h100 or epyc-9654.", metavar="GPU", is_early=True
    )
    hardware_file: Path | None = setting(
        None, "TOML file of more GPUs, or of other prices, a table [gpus.NAME] each.", path="present file"
    )
    step_model: Path | None = setting(
        None, "Instead of --hardware: this machine, from `inflight calibrate`.", path="present file", is_early=True
    )
    engine: str = setting(
        OWN,
        "Engine whose host costs steps have: inflight, sglang, tensorrt-llm, vllm, vllm-sync.",
        metavar="E",
    )
    tensor_parallel: int | None = setting(None, "GPUs of one engine that share each layer's heads and matrices.")
    data_parallel: int | None = setting(
        None, "Groups of such GPUs in one engine, each with attention of its own sequences; of mixtures of experts."
    )
    expert_parallel: bool = setting(False, "Divide whole experts among the GPUs, in place of slices of each.")
    pipeline_parallel: int | None = setting(None, "Stages of layers, each with as many GPUs as the above make.")
    weights: Literal["auto", "bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"] = setting(
        "auto", "Number format of weights; auto: that in which the model is published.", is_choice=True
    )
    kv: Literal["bf16", "fp8", "int8"] = setting("bf16", "Number format of keys and values.", is_choice=True)
    max_loras: int | None = setting(None, "Adapters in memory, which take room from keys and values.")
    max_lora_rank: int | None = setting(None, f"Rank that memory is reserved for; {DEFAULT_RANK} unless set.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedMachineOptions(MachineOptions):
    """A machine with its price."""

    price: float | None = setting(
        None, "$ per GPU (or machine) and hour; GPUs may have an example price.", bound=above_zero("$ per hour")
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """The machine of the decode pool, where it is another."""

    decode_hardware: str | None = setting(
        None, "GPU of the decode pool; that of --hardware unless set.", "Replicas and pools", metavar="GPU"
    )
    decode_tensor_parallel: int | None = setting(
        None, "GPUs of one engine of the decode pool; unless set 1 with --decode-hardware, else as --tensor-parallel."
    )
    decode_step_model: Path | None = setting(
        None, "Step model of the decode pool; that of --step-model unless set.", path="present file"
    )


hardware_options = settings_options(MachineOptions)


def answers_with_vectors(asked: MachineOptions) -> bool:
    """Return whether the model generates no text."""
    check_machine(asked)
    return asked.step_model is None and _read(asked).head is None


def longest_of(asked: MachineOptions, is_pooled: bool = False) -> int:
    """Return the maximum tokens of prompt and answer together. is_pooled: whether answers are vectors."""
    check_machine(asked)
    if asked.step_model is not None:
        return calibrated_machine(read_step_model(asked.step_model)).max_model_len
    return _model(asked, is_pooled).default_model_len


def machines_of(
    asked: PricedMachineOptions,
    demand: Demand,
    max_num_seqs: int | None,
    served: bool = False,
    is_pooled: bool = False,
) -> Machines:
    """Return the ways to run one engine: the calibrated machine, or the GPU in every way worth comparing to divide the
    model (in that of --tensor-parallel and its like). served: only those that this engine runs itself. is_pooled:
    whether answers are vectors."""
    check_machine(asked)
    if asked.step_model is not None:
        return Machines([calibrated_machine(read_step_model(asked.step_model), asked.price)])
    hardware, one = hardware_of(asked, is_pooled=is_pooled), parallelism_of(asked)
    example = hardware.gpu.price_per_hour
    if asked.price is None and example is not None:
        source = hardware.gpu.price_source
        show(f"Price: {example:g} $ per GPU and hour is an example ({source}); give yours with --price.")
    hardware = replace(hardware, price_per_hour=example if asked.price is None else asked.price)
    if one is not None and served and not one.is_tensor_alone:
        raise SettingsError(
            "Settings are written for inflight's own engine, which shares a model by --tensor-parallel alone, and "
            f"{one} is asked for; give that alone, or write no settings."
        )
    if served and not hardware.engine.is_own:
        raise SettingsError(
            f"Settings are written for inflight's own engine, and --engine is {asked.engine}; leave it out, or write "
            "no settings."
        )
    traffic, rows = traffic_of(demand), max_num_seqs or DEFAULT_ROWS
    if one is None and not hardware.max_loras:
        return machines_for(hardware, traffic.mean_context, traffic.longest, rows=rows, served=served)
    return Machines([hardware.machine(one or ONE_GPU, traffic.mean_context, rows=rows)])


def parallelism_of(asked: MachineOptions) -> Parallelism | None:
    """Return the parallelism that the options name; None: none does."""
    degrees = (asked.tensor_parallel, asked.data_parallel, asked.pipeline_parallel)
    if degrees == (None, None, None) and not asked.expert_parallel:
        return None
    for name, degree in zip(("--tensor-parallel", "--data-parallel", "--pipeline-parallel"), degrees, strict=True):
        if degree is not None and degree < 1:
            raise SettingsError(f"{name} is {degree}; give at least 1.")
    tensor, groups, stages = (degree or 1 for degree in degrees)
    if asked.expert_parallel and tensor * groups == 1:
        raise SettingsError(
            "--expert-parallel divides experts among the GPUs of a stage, which has 1; give --tensor-parallel or "
            "--data-parallel, or leave it out."
        )
    expert = tensor * groups if asked.expert_parallel else 1
    return Parallelism(tensor=tensor, expert=expert, data_attention=groups, pipeline=stages)


def hardware_of(asked: MachineOptions, decode: DecodeOptions | None = None, *, is_pooled: bool = False) -> Hardware:
    """Return the GPU with the model on it. decode: of the decode pool. is_pooled: whether answers are vectors."""
    others = () if asked.hardware_file is None else read_hardware_file(asked.hardware_file)
    given = decode and decode.decode_hardware
    gpu = find_gpu(given or asked.hardware or "", others, "--decode-hardware" if given else "--hardware")
    model = _model(asked, is_pooled)
    weights = nearest_precision(model.weight_format) if asked.weights == "auto" else asked.weights
    if weights == "mxfp4" and not model.has_experts:
        raise SettingsError(
            f"--weights mxfp4 is a format of experts, and {model.name or model.family} has none; give int4, or leave "
            "it out."
        )
    for name, numbers in (("weights", weights), ("kv", asked.kv)):
        if not gpu.computes(numbers):
            is_found = name == "weights" and asked.weights == "auto"  # in the checkpoint
            of = f"Weights in {numbers}" if is_found else f"--{name} {numbers}"
            show(f"{of}: {gpu.name} has no units for it, so it saves memory but no arithmetic.")
    degree, name = asked.tensor_parallel, "--tensor-parallel"
    if decode is not None:
        degree, name = decode.decode_tensor_parallel, "--decode-tensor-parallel"
    if degree is not None and degree > gpu.domain:
        raise SettingsError(
            f"{name} is {degree}, but {gpu.link} joins {gpu.domain} of {gpu.name}, and beyond them every layer would "
            "wait for the network; give at most that, or set node-gpus or domain-gpus in a --hardware-file."
        )
    if asked.weights in ("auto", "bf16") and model.weight_format is not None and decode is None:
        show(_of_weights(asked.weights, model.weight_format))
    EngineSettings(max_loras=asked.max_loras, max_lora_rank=asked.max_lora_rank)  # checks them
    slots, rank = asked.max_loras or 0, asked.max_lora_rank or DEFAULT_RANK
    one = parallelism_of(asked) if decode is None else Parallelism(degree or 1)
    if slots and one is not None and one.gpus > 1:
        divided = f"{name} {degree}" if one.is_tensor_alone else f"the model is divided as {one}"
        raise SettingsError(
            f"--max-loras is {slots}, and {divided}: an engine with adapters runs on one GPU; leave one out."
        )
    return Hardware(
        model=model,
        gpu=gpu,
        weights=weights,
        kv=asked.kv,
        max_loras=slots,
        max_lora_rank=rank,
        engine=_engine(asked.engine, gpu, model),
    )


def _engine(name: str, gpu: Gpu, model: ModelSpec) -> EngineCosts:
    """Return the costs of an engine's host. Raises EngineUnknown, SettingsError."""
    engine = engine_costs(name).of_model(model.family)
    if gpu.device != "cuda" and not engine.is_own:
        raise SettingsError(
            f"--engine is {name}, whose host costs are known beside GPUs alone, and {gpu.name} is a processor; leave "
            "--engine out."
        )
    return engine


def _of_weights(asked: str, published: WeightFormat) -> str:
    """Return how weights are computed, beside the format in which they are published."""
    method = published.method if published.bits is None else f"{published.method}, {published.bits} bits"
    nearest = nearest_precision(published)
    if asked == "auto":
        return f"Weights: computed as {nearest}, since the model is published in {method}; --weights chooses another."
    return f"Weights: this model is published in {method}, and computed here in bf16; --weights {nearest} is nearer."


def _model(asked: MachineOptions, is_pooled: bool = False) -> ModelSpec:
    """Return the model, without its head where answers are vectors. Raises ModelError."""
    spec = _read(asked)
    if is_pooled:
        return structs.replace(spec, head=None)
    if spec.head is None:
        raise ModelError(
            f"{spec.name or spec.family} generates no text, and this is for models that do; size it with `inflight "
            "plan`, or measure a server of it with `inflight bench`."
        )
    return spec


def _read(asked: MachineOptions) -> ModelSpec:
    return read_model(asked.model or "", None if asked.family is None else family_at(asked.family))


def check_machine(asked: MachineOptions) -> None:
    """Raise click.UsageError unless exactly one kind of machine is named, and all options have an effect with it."""
    if (asked.step_model is None) == (asked.hardware is None):
        raise click.UsageError(
            "--hardware (a GPU by its data sheet) and --step-model (this machine, from `inflight calibrate`) name what "
            "the engine runs on; give one of them."
        )
    if asked.hardware is not None and asked.model is None:
        raise click.UsageError("Missing option '--model': a well-known name, a folder or a config.json.")
    if asked.step_model is not None:
        divided = ("tensor_parallel", "data_parallel", "pipeline_parallel", "expert_parallel")
        refuse(asked, ("hardware_file", *divided, "max_loras", "max_lora_rank"), "--hardware", "--step-model")
        for name, default in (("weights", "auto"), ("kv", "bf16"), ("engine", OWN)):
            if getattr(asked, name) != default:
                raise click.UsageError(f"--{name} has no effect with --step-model, which was measured; leave it out.")


def refuse(asked: object, names: tuple[str, ...], about: str, given: str) -> None:
    """Raise click.UsageError where one of these options is set, which are about `about`, not about `given`."""
    for name in names:
        if getattr(asked, name) not in (None, False):
            raise click.UsageError(f"{option(name)} is about {about} and has no effect with {given}; leave it out.")


def devices_of(
    asked: MachineOptions, decode: DecodeOptions, block_size: int | None, max_num_seqs: int | None
) -> tuple[Device, Device]:
    """Return the devices of the engines and of the decode pool. Raises click.UsageError, SettingsError, and the errors
    of step models, GPUs and shapes."""
    check_machine(asked)
    if asked.step_model is not None:
        refuse(asked, ("model", "family"), "--hardware", "--step-model")
        refuse(decode, ("decode_hardware", "decode_tensor_parallel"), "--hardware", "--step-model")
        first, path = calibrated_device(asked.step_model), decode.decode_step_model
        return first, first if path is None else calibrated_device(path)
    refuse(decode, ("decode_step_model",), "--step-model", "--hardware")
    size = (EngineSettings(block_size=BLOCK_SIZE if block_size is None else block_size).block_size, max_num_seqs)
    one = parallelism_of(asked) or ONE_GPU
    first = device_by_data_sheet(hardware_of(asked), one, *size)
    if decode.decode_tensor_parallel is None and decode.decode_hardware is None:
        return first, first
    other = Parallelism(decode.decode_tensor_parallel or 1)
    return first, device_by_data_sheet(hardware_of(asked, decode), other, *size)
