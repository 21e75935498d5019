"""`inflight doctor`: measure this machine, and compute how fast a model can be on it at best."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import inflight
from inflight.cli.declared import settings_options, takes
from inflight.cli.options import complete_model
from inflight.cli.step_traces import ROOM, check_traced, table, trace_steps
from inflight.cli.summary import show
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError, setting
from inflight.config.threads import resolve_threads
from inflight.counted import counted

if TYPE_CHECKING:
    from inflight.execution.backends.native import InstructionSet
    from inflight.execution.roofline import Machine

BATCHES, GPU_BATCHES = (1, 8, 32), (1, 32, 256)
PROMPTS, GPU_PROMPTS = (512, 2048), (512, 2048, 8192)
CONTEXT = 1024  # tokens of each sequence in the decode figures
COMMAND = "inflight doctor --kernels all"
_OF_ENGINE = "model quantization quantization_group_size kv_cache_dtype device threads load_format"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Traces, and the report's form."""

    trace: bool = setting(False, "Compute steps, and show the time of each thread by operation.", "Options")
    context: int | None = setting(
        None, f"Tokens of each sequence in decode figures; {CONTEXT:,}, or the model's maximum."
    )
    trace_file: Path | None = setting(None, "Write the spans of --trace for Perfetto, as JSON.")
    as_json: bool = setting(False, "Print everything as one JSON object.", flags=("--json",))


@click.command("doctor", cls=Verb)
@settings_options(EngineSettings, complete={"model": complete_model}, only=_OF_ENGINE.split())
@takes(asked=DoctorOptions)
@click.option(
    "--kernels",
    type=click.Choice(["all"]),
    allow_from_autoenv=False,  # INFLIGHT_KERNELS names the kernels that a build compiles
    help="Compile the kernels of every instruction set, in a checkout, list them, and measure nothing.",
)
def command(kernels: str | None, asked: DoctorOptions, **engine: Any) -> None:
    """Measure this machine, and compute how fast a model can be on it at best."""
    settings = EngineSettings(**engine)
    if kernels:
        _compile_all()
        sets = _instruction_sets()
        as_json = json.dumps({"kernels": [asdict(one) for one in sets]})
        print(as_json if asked.as_json else "\n".join(_listing(sets)))
        return
    from inflight.build import model_folder
    from inflight.build.model import held_spec
    from inflight.models.registry import read_folder

    config = held_spec(read_folder(model_folder(settings), to_run=True), settings)
    longest = config.default_model_len - (ROOM if asked.trace else 0)
    context = min(CONTEXT, longest) if asked.context is None else asked.context
    if not 1 <= context <= longest:
        raise SettingsError(f"--context is {context:,}; give 1 to {longest:,} tokens, which this model has room for.")
    if asked.trace:
        check_traced(settings, config, asked.trace_file)
    elif asked.trace_file is not None:
        raise SettingsError("--trace-file is where --trace writes its spans; add --trace, or leave it out.")
    if not asked.as_json:
        show("Measuring for a few seconds; other work on this machine lowers the results ...")
        load, cpus = os.getloadavg()[0], os.cpu_count() or 1
        if load > cpus / 2:
            show(f"The load average is {load:.1f} on {counted(cpus, 'CPU')}: the results will be too low.")
    machine, report = _machine(settings)
    report["model"] = _model(config, machine, settings, context, report["gpu"] is not None)
    if asked.trace:
        report["trace"] = trace_steps(settings, config, context, machine, asked.trace_file)
    if asked.as_json:
        print(json.dumps(report))
    else:
        _print(report)
        print("\n".join(table(report.get("trace", ()))))


def _compile_all() -> None:
    """Compile the kernels that this environment's build lacks, before kernels are loaded. A wheel lacks none.

    Raises:
        SettingsError: The environment is not one that `scripts/venv` made, or compiling failed.
    """
    checkout, environment = Path(inflight.__file__).parents[2], Path(sys.prefix)
    script, choices = checkout / "scripts" / "venv", environment / "choices"
    if not script.is_file():
        return
    if not choices.is_file():
        pip = f"{shlex.quote(sys.executable)} -m pip install --no-deps -e {shlex.quote(str(checkout))}"
        raise SettingsError(f"{environment} was not set up by {script}; `{pip}` compiles all kernels into it.")
    extras = dict(line.partition(" ")[::2] for line in choices.read_text().splitlines()).get("extras", "")
    done = subprocess.run([script, environment, extras], env={**os.environ, "INFLIGHT_KERNELS": "all"}, check=False)
    if done.returncode:
        raise SettingsError("The kernels were not compiled; the lines above say why.")


def _listing(sets: list[InstructionSet]) -> list[str]:
    """Return a line for each instruction set: whether it is compiled, runs on this processor, and is in use."""
    used = next((one for one in sets if one.runs and one.compiled), None)
    lines = []
    for one in sets:
        state = "compiled" if one.compiled else f"not compiled; `{COMMAND}` does it"
        if not one.runs:
            state += ", and this processor does not run it"
        lines.append(f"{one.name:<16}{'in use' if one is used else state}")
    return lines


def _instruction_sets() -> list[InstructionSet]:
    """Return the instruction sets of the kernels. Raises SettingsError where none are compiled."""
    from inflight.execution.backends import native

    try:
        return native.instruction_sets()
    except ImportError as error:
        raise SettingsError(f"The kernels cannot be used: {error}.") from error


def _machine(settings: EngineSettings) -> tuple[Machine, dict[str, Any]]:
    """Return the rates that limit a model, and the report on this machine."""
    from inflight.build.limits import resolve_device
    from inflight.execution.backends import native
    from inflight.execution.memory import machine_memory
    from inflight.execution.roofline import Machine
    from inflight.simulate.sources import cores

    sets = _instruction_sets()
    if not any(one.runs and one.compiled for one in sets):
        raise SettingsError(f"No compiled kernels run on this processor; `{COMMAND}` compiles those that do.")
    device, threads = resolve_device(settings), int(resolve_threads(settings).value)
    # The best of some tries: a ceiling is the rate of the machine alone, without its other work.
    bandwidth = max(native.read_bandwidth_bytes_per_s(threads) for _ in range(3))
    kinds: dict[str, Literal["bf16", "f32", "int8"]] = {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}
    peaks = {name: max(native.peak_flops(kind, threads) for _ in range(3)) for name, kind in kinds.items()}
    memory = machine_memory()
    report: dict[str, Any] = {
        "device": device.value,
        "device_reason": device.reason,
        "gpu": None if device.value == "cpu" else _gpu(str(device.value)),
        "cpu": (cores() or [platform.processor() or platform.machine()])[0],
        "threads": threads,
        "instruction_sets": [one.name for one in sets if one.runs and one.compiled],
        "kernels": [asdict(one) for one in sets],
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "read_bytes_per_s": bandwidth,
        "flops_per_s": peaks,
    }
    gpu: dict[str, Any] | None = report["gpu"]
    if gpu is None:
        return Machine(bandwidth, peaks), report
    rates = dict(gpu["flops_per_s"])
    if settings.quantization.startswith("int4"):
        rates["int8"] = rates["bfloat16"]  # widened where they are multiplied
    return Machine(gpu["read_bytes_per_s"], rates), report


def _gpu(device: str) -> dict[str, Any]:
    """Measure a GPU. Raises SettingsError where that fails."""
    from inflight.execution.backends.torch.rates import device_rates

    try:
        return asdict(device_rates(device))
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise SettingsError(f"{device} cannot be measured ({why}); --device cpu measures the CPU alone.") from error


def _model(config: Any, machine: Machine, settings: EngineSettings, context: int, on_gpu: bool) -> dict[str, Any]:
    from inflight.execution.roofline import decode_ceiling, prefill_ceiling, ridge_tokens
    from inflight.execution.sizes import kv_bytes_per_token, weight_bytes
    from inflight.models.arithmetic import parameters
    from inflight.models.weight_format import described

    weights, int8_kv = settings.quantization, settings.kv_cache_dtype in ("int8", "fp8")
    group_size = settings.quantization_group_size
    decode = []
    batches = GPU_BATCHES if on_gpu else BATCHES
    for batch in () if config.head is None else batches:
        ceiling = decode_ceiling(config, machine, batch, context, weights, int8_kv, group_size)
        decode.append(
            {
                "batch": batch,
                "context": context,
                "step_ms": ceiling.seconds * 1e3,
                "tokens_per_s": batch / ceiling.seconds,
                "bound_by": ceiling.bound_by,
            }
        )
    prefill = []
    for tokens in GPU_PROMPTS if on_gpu else PROMPTS:
        if tokens < config.default_model_len or (config.head is None and tokens == config.default_model_len):
            ceiling = prefill_ceiling(config, machine, tokens, weights, int8_kv, group_size)
            prefill.append({"prompt": tokens, "ms": ceiling.seconds * 1e3, "tokens_per_s": tokens / ceiling.seconds})
    return {
        "name": settings.model or "built-in",
        "quantization": weights,
        "weight_format": None if config.weight_format is None else described(config.weight_format),
        "kv_cache_dtype": settings.kv_cache_dtype,
        "family": config.family,
        "parameters": parameters(config),
        "weight_bytes": weight_bytes(config, "bfloat16", weights, group_size),
        "kv_bytes_per_token": kv_bytes_per_token(config, "bfloat16", int8_kv),
        "max_model_len": config.default_model_len,
        "ridge_tokens": ridge_tokens(config, machine, weights, group_size),
        "decode": decode,
        "prefill": prefill,
    }


def _print(report: dict[str, Any]) -> None:
    from inflight.execution.memory import gib

    peaks, model, gpu = report["flops_per_s"], report["model"], report["gpu"]
    free = report["memory_available_bytes"] if gpu is None else gpu["free_bytes"]
    isas = report["instruction_sets"]
    print(f"CPU             {report['cpu']}, {counted(report['threads'], 'thread')}")
    print(f"device          {report['device']}: {report['device_reason']}")
    print(f"kernels         {isas[0]} (also here: {', '.join(isas[1:]) or 'none'})")
    best = next(one for one in report["kernels"] if one["runs"])
    if not best["compiled"]:
        print(
            f"                this processor also runs {best['name']}, which this build lacks: `{COMMAND}` compiles it"
        )
    print(f"memory          {gib(report['memory_available_bytes'])} free of {gib(report['memory_total_bytes'])}")
    print(f"read bandwidth  {report['read_bytes_per_s'] / 1e9:,.1f} GB/s")
    print(
        f"peak            bf16 {peaks['bfloat16'] / 1e9:,.0f} GFLOP/s, f32 {peaks['float32'] / 1e9:,.0f} GFLOP/s, "
        f"int8 {peaks['int8'] / 1e9:,.0f} GOP/s"
    )
    if gpu is not None:
        rates = ", ".join(f"{name} {rate / 1e12:,.0f}" for name, rate in gpu["flops_per_s"].items())
        print(f"GPU             {gpu['name']}, {gib(gpu['free_bytes'])} free of {gib(gpu['total_bytes'])}")
        print(f"  reads         {gpu['read_bytes_per_s'] / 1e12:,.2f} TB/s")
        print(f"  multiplies    {rates} TFLOP/s, in matrices of 8,192 by 8,192")
    print(f"\nmodel           {model['name']}: {model['family']}, {model['parameters'] / 1e6:,.1f} M parameters")
    name = model["quantization"]
    numbers = "bfloat16" if name == "none" else name.removesuffix("-all") if "-" in name else f"{name} and bfloat16"
    numbers = model["weight_format"] or numbers
    print(f"weights         {gib(model['weight_bytes'])} in {numbers}", end="")
    left = free - model["weight_bytes"]
    if left <= 0:
        print(f": more than the {gib(free)} that are free; it does not fit")
        return
    if each := model["kv_bytes_per_token"]:
        kv = f", in {kv_dtype}" if (kv_dtype := model["kv_cache_dtype"]) != "auto" else ""
        print(f", leaving room for the keys and values of {left // each:,} tokens ({gib(each)} each{kv})")
    else:
        print(": an encoder-only model, which caches no keys and values")
    print(f"ridge           {model['ridge_tokens']:.0f} tokens per step: with more, compute is the bottleneck")
    print("\nat best         (memory bandwidth and peak rates limit every step)")
    for one in model["decode"]:
        print(
            f"  decode        batch {one['batch']:>3} at {one['context']} tokens: {one['step_ms']:8.2f} ms per step, "
            f"{one['tokens_per_s']:8,.0f} tokens/s, bound by {one['bound_by']}"
        )
    for one in model["prefill"]:
        print(f"  prefill       {one['prompt']:>5} tokens: {one['ms']:8.2f} ms, {one['tokens_per_s']:8,.0f} tokens/s")
