"""Sequences and tokens of a step that an engine takes where a source says nothing of them, by its own rules."""

from __future__ import annotations

import math

from inflight.models.arithmetic import weight_bytes
from inflight.models.sequence_memory import paged_kv_bytes_per_token
from inflight.models.spec import ModelSpec
from inflight.simulate.engine_costs import engine_costs
from inflight.simulate.hardware import ITEM_BYTES, Gpu, Precision
from inflight.simulate.parallelism import Parallelism

_LARGE = 70e9  # bytes of memory, from which vLLM takes more, but on A100
# Of SGLang's --chunked-prefill-size: up to these bytes of memory so many tokens
_CHUNKS = ((35e9, 2048), (60e9, 4096), (160e9, 8192), (math.inf, 16384))


def default_limits(engine: str, gpu: Gpu) -> tuple[int, int]:
    """Return the sequences and the tokens of a step of a server on such a GPU."""
    if engine == "vllm":
        large = gpu.memory_bytes >= _LARGE and not gpu.name.startswith("a100")
        return (1024, 8192) if large else (256, 2048)
    if engine == "sglang":
        return 2048, next(tokens for most, tokens in _CHUNKS if gpu.memory_bytes < most)
    return 2048, 8192


def bench_limits(
    spec: ModelSpec, gpu: Gpu, parallelism: Parallelism, weights: Precision, kv: Precision, prompt: int, output: int
) -> tuple[int, int]:
    """Return the sequences and the tokens of a step that `trtllm-bench` takes for a data set: as many sequences as fit
    into 0.95 of what weights leave, with the keys and values of all layers as if none had a window, and the tokens that
    they need in balance (its `calc_engine_setting`)."""
    one = parallelism
    mixture = spec.has_experts
    packing = engine_costs("tensorrt-llm").packing(weights, mixture)
    free = gpu.memory_bytes * one.gpus - weight_bytes(spec, packing)
    heads = max(getattr(layer.mixer, "kv_heads", 1) for layer in spec.layers)
    copies = max(1.0, one.gpus / heads)  # of keys and values
    token = paged_kv_bytes_per_token(spec, ITEM_BYTES[kv]) * copies
    sequences = min(0.95 * free / (token * (prompt + output)), 4096)
    grain = 32 if sequences < 256 else 128 if sequences < 1024 else 256
    tokens = min(sequences * (1 + prompt / output), 32768)
    step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return max(64, grain * math.ceil(sequences / grain)), max(2048, step * math.ceil(tokens / step))
