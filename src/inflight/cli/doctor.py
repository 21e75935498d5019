"""`inflight doctor`: what this machine can do and what a model can reach on it at best.

Knows how to tell it; the rates are measured with the kernels' own instructions (`backends.native`), the ceiling
computed by `execution.roofline`.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any, Literal

import click

from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings, resolve_threads
from inflight.counted import counted

BATCHES = (1, 8, 32)
PROMPTS = (512, 2048)
CONTEXT = 1024  # tokens of each sequence in the decode figures


@click.command("doctor", cls=Verb)
@click.option(
    "--model", metavar="M", help="Model folder, .gguf file or hub id to judge; without it the built-in model."
)
@click.option(
    "--quantization",
    default="none",
    show_default=True,
    help="none, int8, int8-all, int4 or int4-all, as the engine would hold it.",
)
@click.option("--quantization-group-size", type=int, default=32, show_default=True, help="Of int4: 32, 64 or 128.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto or int8, the same.")
@click.option("--threads", type=int, help="Kernel threads; without it one per usable core.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(
    model: str | None,
    quantization: str,
    quantization_group_size: int,
    kv_cache_dtype: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure this machine and say what a model can reach on it at best."""
    settings = EngineSettings(
        model=model,
        quantization=quantization,  # type: ignore[arg-type]  # the settings say what is known
        quantization_group_size=quantization_group_size,
        kv_cache_dtype=kv_cache_dtype,  # type: ignore[arg-type]
        threads=threads,
    )
    from inflight.build import model_folder
    from inflight.models.registry import read_folder

    config = read_folder(model_folder(settings), to_run=True)
    if not as_json:
        print("Measuring for a few seconds; other work on this machine lowers what is found ...", file=sys.stderr)
    machine, report = _machine(int(resolve_threads(settings).value))
    report["model"] = _model(config, machine, settings)
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)


def _machine(threads: int) -> tuple[Any, dict[str, Any]]:
    from inflight.execution.backends import native
    from inflight.execution.backends.torch.device import choose
    from inflight.execution.memory import machine_memory
    from inflight.execution.roofline import Machine
    from inflight.simulate.sources import cores

    # The best of some tries: a ceiling is what the machine can do, not what its neighbours leave.
    bandwidth = max(native.read_bandwidth_bytes_per_s(threads) for _ in range(3))
    kinds: dict[str, Literal["bf16", "f32", "int8"]] = {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}
    peaks = {name: max(native.peak_flops(kind, threads) for _ in range(3)) for name, kind in kinds.items()}
    memory, device = machine_memory(), choose("auto")
    report = {
        "device": device.name,
        "device_reason": device.reason,
        "cpu": (cores() or [platform.processor() or platform.machine()])[0],
        "threads": threads,
        "instruction_sets": native.available_isas(),
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "read_bytes_per_s": bandwidth,
        "flops_per_s": peaks,
    }
    return Machine(bandwidth, peaks), report


def _model(config: Any, machine: Any, settings: EngineSettings) -> dict[str, Any]:
    from inflight.execution.roofline import decode_ceiling, prefill_ceiling, ridge_tokens
    from inflight.execution.sizes import kv_bytes_per_token, weight_bytes
    from inflight.models.arithmetic import parameters
    from inflight.models.weight_format import described

    held, int8_kv = settings.quantization, settings.kv_cache_dtype == "int8"
    group_size = settings.quantization_group_size
    context = min(CONTEXT, config.default_model_len)
    decode = []
    for batch in BATCHES:
        ceiling = decode_ceiling(config, "bfloat16", machine, batch, context, held, int8_kv, group_size)
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
    for tokens in PROMPTS:
        if tokens < config.default_model_len:
            ceiling = prefill_ceiling(config, "bfloat16", machine, tokens, held, int8_kv, group_size)
            prefill.append({"prompt": tokens, "ms": ceiling.seconds * 1e3, "tokens_per_s": tokens / ceiling.seconds})
    return {
        "name": settings.model or "built-in",
        "quantization": held,
        "weight_format": None if config.weight_format is None else described(config.weight_format),
        "kv_cache_dtype": settings.kv_cache_dtype,
        "family": config.family,
        "parameters": parameters(config),
        "weight_bytes": weight_bytes(config, "bfloat16", held, group_size),
        "kv_bytes_per_token": kv_bytes_per_token(config, "bfloat16", int8_kv),
        "max_model_len": config.default_model_len,
        "ridge_tokens": ridge_tokens(config, "bfloat16", machine, held, group_size),
        "decode": decode,
        "prefill": prefill,
    }


def _print(report: dict[str, Any]) -> None:
    from inflight.execution.memory import gib

    peaks, model = report["flops_per_s"], report["model"]
    free = report["memory_available_bytes"]
    isas = report["instruction_sets"]
    print(f"CPU             {report['cpu']}, {counted(report['threads'], 'thread')}")
    print(f"device          {report['device']}: {report['device_reason']}")
    print(f"kernels         {isas[0]} (also here: {', '.join(isas[1:]) or 'none'})")
    print(f"memory          {gib(free)} free of {gib(report['memory_total_bytes'])}")
    print(f"read bandwidth  {report['read_bytes_per_s'] / 1e9:,.1f} GB/s")
    print(
        f"peak            bf16 {peaks['bfloat16'] / 1e9:,.0f} GFLOP/s, f32 {peaks['float32'] / 1e9:,.0f} GFLOP/s, "
        f"int8 {peaks['int8'] / 1e9:,.0f} GOP/s"
    )
    print(f"\nmodel           {model['name']}: {model['family']}, {model['parameters'] / 1e6:,.1f} M parameters")
    name = model["quantization"]
    kept = "bfloat16" if name == "none" else name.removesuffix("-all") if "-" in name else f"{name} and bfloat16"
    kept = model["weight_format"] or kept
    print(f"weights         {gib(model['weight_bytes'])} in {kept}", end="")
    left = free - model["weight_bytes"]
    if left <= 0:
        print(f": more than the {gib(free)} that are free; it does not fit")
        return
    tokens, kv = left // model["kv_bytes_per_token"], ", in int8" if model["kv_cache_dtype"] == "int8" else ""
    print(f", leaving room for the keys and values of {tokens:,} tokens ({gib(model['kv_bytes_per_token'])} each{kv})")
    print(f"ridge           {model['ridge_tokens']:.0f} tokens per step: from there the cores are the limit")
    print("\nat best         (no step can be faster than its bytes or its operations allow)")
    for one in model["decode"]:
        print(
            f"  decode        batch {one['batch']:>2} at {one['context']} tokens: {one['step_ms']:8.2f} ms per step, "
            f"{one['tokens_per_s']:8,.0f} tokens/s, bound by {one['bound_by']}"
        )
    for one in model["prefill"]:
        print(f"  prefill       {one['prompt']:>5} tokens: {one['ms']:8.2f} ms, {one['tokens_per_s']:8,.0f} tokens/s")
