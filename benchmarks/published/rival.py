"""Predictions of NVIDIA's AISimulate for the same runs: query it once, keep its answers in aisimulate.json.

It is no dependency of this project. Installed in an environment of its own (`pip install --only-binary=:all:
aisimulate`), its `predict` gets the model, the GPU, the engine's limits and the requests of each run. Its tables are of
newer engines than those of the runs; no engine version is requested.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.published.measurements import ALL_AT_ONCE, Figures, Measurement
from inflight.models.mixers.mla import LatentAttention
from inflight.simulate.engine_costs import IN_BLOCKS

FILE = Path(__file__).with_name("aisimulate.json")
SECONDS = 300  # limit for one run
_MODELS = {
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "llama-3-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
}
_GPUS = {
    "a100-80": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


@dataclass(frozen=True, slots=True)
class Rival:
    """Its answers. figures: by name of the measurement. refused: the same, with its reason."""

    version: str
    date: str
    figures: dict[str, Figures]
    refused: dict[str, str]


def read_rival(path: Path = FILE) -> Rival:
    """Return the answers that are kept; none where there is no file."""
    if not path.exists():
        return Rival("", "", {}, {})
    kept = json.loads(path.read_text(encoding="utf-8"))
    figures = {name: Figures(**one) for name, one in kept["figures"].items()}
    return Rival(kept["version"], kept["date"], figures, kept["refused"])


def ask_rival(program: Path, measurements: Iterable[Measurement], path: Path = FILE) -> Rival:
    """Query `program` (its `aisimulate`) for the measurements that are not in the file yet, and keep each answer."""
    rival = read_rival(path)
    version = _version(program)
    figures, refused = (dict(rival.figures), dict(rival.refused)) if rival.version == version else ({}, {})
    for one in measurements:
        if one.name in figures or one.name in refused:
            continue
        answer = _ask(program, one)
        if isinstance(answer, Figures):
            figures[one.name] = answer
        else:
            refused[one.name] = answer
        rival = Rival(version, datetime.now(UTC).date().isoformat(), figures, refused)
        path.write_text(json.dumps(asdict(rival), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return rival


def _version(program: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('aisimulate'))"
    ran = subprocess.run([str(program.with_name("python")), "-c", code], check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def _ask(program: Path, measurement: Measurement) -> Figures | str:
    """Return its figures, or the last line of its refusal."""
    if measurement.gpu_name not in _GPUS:
        return "it has no such GPU"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps(_config(measurement, Path(folder))), encoding="utf-8")  # JSON is YAML
        options = ["--config", str(config), "--format", "json", "--output-dir", str(Path(folder) / "out")]
        try:
            ran = subprocess.run([str(program), "predict", *options], capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s"
    try:
        found = json.loads(ran.stdout.strip().splitlines()[-1])
        return Figures(found["output_throughput_tok_s"], found["mean_ttft_ms"], found["mean_tpot_ms"])
    except (ValueError, KeyError, IndexError):
        lines = (ran.stderr.strip() or ran.stdout.strip() or "no answer").splitlines()
        reasons = [line for line in lines if ("rror" in line or "failed:" in line) and "errors.pydantic" not in line]
        return (reasons or lines)[-1].strip()[:200].replace(folder, "…")


def _config(measurement: Measurement, folder: Path) -> dict[str, Any]:
    one, moe = measurement.parallelism, measurement.spec.has_experts
    parallelism = {"tensor": one.tensor, "attention_data": one.data_attention}
    if moe:
        parallelism |= {"moe_tensor": one.gpus // one.expert, "moe_expert": one.expert}
    engine: dict[str, Any] = {
        "model": _model(measurement, folder),
        "hardware": _GPUS[measurement.gpu_name],
        "backend": _ENGINES[measurement.engine.name],
        "workers": {
            "aggregated": {
                "parallelism": parallelism,
                "scheduler": {  # of each data-parallel group
                    "max_batched_tokens": measurement.max_num_batched_tokens // one.data_attention,
                    "max_sequences": min(measurement.max_num_seqs // one.data_attention, measurement.requests),
                },
                "kv_cache": {"prefix_caching": False, "capacity": {"memory_fraction": measurement.memory_share}},
            }
        },
    }
    engine |= _quantization(measurement, moe)
    streams = measurement.requests if measurement.concurrency == ALL_AT_ONCE else measurement.concurrency
    source = _source(measurement, folder)
    stop = {} if source["type"] == "trace" else {"stop": {"requests": measurement.requests}}
    load = {"type": "concurrency", "concurrency": streams}
    return {"engine": engine, "traffic": {"source": source, "load": load, **stop}}


def _quantization(measurement: Measurement, moe: bool) -> dict[str, str]:
    """Return its names of the run's formats: those that it takes by itself where it is given the checkpoint, of which
    its names of models are others'.

    TensorRT-LLM's checkpoints in fp8 have one scale a tensor, fixed beforehand, but DeepSeek's own, which have one a
    block, as Qwen3's have under other engines. In mxfp4 it takes experts of 16-bit activations by itself, also on
    Blackwell, where it has those of eight for TensorRT-LLM and SGLang, and sets its own search to take them. Prompts'
    attention is in bf16 where the cache is, and in TensorRT-LLM's latent attention, of which it has no timings in fp8.
    """
    weights, engine, model = measurement.weights, measurement.engine.name, measurement.model
    found = {"kvcache_quant_mode": "fp8" if measurement.kv == "fp8" else "bfloat16"}
    if weights == "fp8":
        in_tensors = engine == "tensorrt-llm"
        blocks = measurement.spec.family in IN_BLOCKS or ("qwen3" in model and not in_tensors)
        found["gemm_quant_mode"] = "fp8_block" if blocks else "fp8_static" if in_tensors else "fp8"
        if moe:
            found["moe_quant_mode"] = "fp8_block" if blocks else "fp8"
    if weights == "nvfp4":
        found |= {"gemm_quant_mode": "nvfp4"} | ({"moe_quant_mode": "nvfp4"} if moe else {})
    if weights == "mxfp4" and engine != "vllm" and measurement.gpu.computes("mxfp4"):
        found["moe_quant_mode"] = "w4a8_mxfp4_mxfp8"
    latent = any(isinstance(layer.mixer, LatentAttention) for layer in measurement.spec.layers)
    if measurement.kv != "fp8":
        found["fmha_quant_mode"] = "bfloat16"
    elif engine == "tensorrt-llm":
        found["fmha_quant_mode"] = "fp8" if weights in ("fp8", "nvfp4") and not latent else "bfloat16"
    return found


def _model(measurement: Measurement, folder: Path) -> str:
    """Return its name of a model, or a folder with the config.json."""
    if measurement.model in _MODELS:
        return _MODELS[measurement.model]
    made = folder / measurement.model
    made.mkdir()
    shutil.copy(measurement.shape, made / "config.json")
    return str(made)


def _source(measurement: Measurement, folder: Path) -> dict[str, Any]:
    if not measurement.dataset:
        return {"type": "synthetic", "input_tokens": measurement.prompt, "output_tokens": measurement.output}
    trace = folder / "trace.jsonl"
    block = 512
    with trace.open("w", encoding="utf-8") as file:
        first = 0
        for entry in measurement.workload.entries:
            blocks = -(-entry.prompt_tokens // block)
            line = {
                "timestamp": 0,
                "input_length": entry.prompt_tokens,
                "output_length": entry.output_tokens,
                "hash_ids": list(range(first, first + blocks)),
            }
            first += blocks
            file.write(json.dumps(line) + "\n")
    return {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": block}
