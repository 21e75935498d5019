"""Options that say what an engine would run on, a GPU by its data sheet or this machine as calibrated; shared by plan,
tune and simulate.

Knows the options' names; GPUs, shapes and step models, the simulate package knows.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inflight.cli.verb import grouped
from inflight.config.setting import SettingsError
from inflight.models.known import read_model
from inflight.planning.demand import Demand
from inflight.planning.machine import Hardware, Machine, calibrated_machine
from inflight.planning.sizing import traffic_of
from inflight.simulate.hardware import find_gpu, read_hardware_file
from inflight.simulate.sources import read_step_model

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PRECISIONS = ("bf16", "fp8", "int8")  # of keys and values; of weights int4 too

hardware_options = grouped(
    "Machine",
    click.option(
        "--model", metavar="M", help="With --hardware: a well-known name (llama-3-70b), a folder or a config.json."
    ),
    click.option("--hardware", metavar="GPU", help="A GPU by name, such as a100-80 or h100."),
    click.option("--hardware-file", type=_FILE, help="TOML file of more GPUs, a table [gpus.NAME] each."),
    click.option("--step-model", type=_FILE, help="Instead of --hardware: this machine, from `inflight calibrate`."),
    click.option("--tensor-parallel", type=int, help="GPUs of one engine."),
    click.option(
        "--weights", type=click.Choice((*PRECISIONS, "int4")), default="bf16", show_default=True, help="Of the weights."
    ),
    click.option("--kv", type=click.Choice(PRECISIONS), default="bf16", show_default=True, help="Of keys and values."),
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
    return read_model(values["model"]).default_model_len


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
        tell(f"Price: {example:g} $ per GPU and hour is an example; give yours with --price.")
    hardware = replace(hardware, price_per_hour=hardware.gpu.price_per_hour if price is None else price)
    degree = values["tensor_parallel"]
    context = traffic_of(demand).mean_context
    return [hardware.machine(one, context) for one in (hardware.degrees() if degree is None else (degree,))]


def hardware_of(values: dict[str, Any], pool: str = "") -> Hardware:
    """The GPU with the model on it; of a second pool ("decode_") its GPU, if that is another."""
    others = () if values["hardware_file"] is None else read_hardware_file(values["hardware_file"])
    gpu = find_gpu(values[f"{pool}hardware"] or values["hardware"], others)
    for name in ("weights", "kv"):
        if not gpu.computes(values[name]):
            tell(f"--{name} {values[name]}: {gpu.name} has no units for it, so that it saves memory but no arithmetic.")
    degree = values[f"{pool}tensor_parallel"]
    if degree is not None and degree > gpu.node_gpus:
        raise SettingsError(
            f"--{pool.replace('_', '-')}tensor-parallel is {degree}, but a node has {gpu.node_gpus} of {gpu.name}, and "
            "between nodes every layer would wait for the network; give at most that, or say node-gpus in a "
            "--hardware-file."
        )
    return Hardware(model=read_model(values["model"]), gpu=gpu, weights=values["weights"], kv=values["kv"])


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
        for name in ("hardware_file", "tensor_parallel"):
            if values[name] is not None:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(
                    f"{option} is about --hardware and has no effect with --step-model; leave it out."
                )
        for name in ("weights", "kv"):
            if values[name] != "bf16":
                raise click.UsageError(f"--{name} has no effect with --step-model, which was measured; leave it out.")


def tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)
