"""Estimate the memory that a model will take before it is loaded, to share memory among several models.

Weights and blocks are counted as the engine packs them; the rest of a process is a round number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from inflight.build.adapters import plan_adapters
from inflight.build.engine import kv_layout
from inflight.build.limits import Limits, resolve_device, resolve_limits
from inflight.build.model import computed_model, model_folder
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.kv_blocks import max_blocks
from inflight.execution.memory import GIB
from inflight.execution.sizes import weight_bytes
from inflight.models.arithmetic import adapter_parameters
from inflight.models.gguf.gguf_model import gguf_at
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import ModelSpec

# Interpreter, libraries, tokenizer and what a step's activations take; all of the built-in model's process has 0.1 GiB.
PROCESS_BYTES = 3 * GIB // 10
_WEIGHT_FILES = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """An estimate. nbytes: of weights, keys and values, and the process around them. settings: with the size of the KV
    cache that is counted."""

    nbytes: int
    settings: EngineSettings


def memory_needs(settings: EngineSettings, scheduling: SchedulingSettings, max_kv_bytes: int) -> MemoryNeeds:
    """Estimate what a model will take.

    Args:
        max_kv_bytes: for keys and values, where the settings do not set their size; request slots may need less.

    Raises:
        SettingsError, ModelError: the model cannot be served.
    """
    folder = model_folder(settings)
    if settings.backend == "transformers":
        return _of_modules(folder, settings, max_kv_bytes)
    device = resolve_device(settings)
    spec = computed_model(gguf_at(folder) or folder, settings, str(device.value)).spec
    limits = resolve_limits(settings, spec, device, scheduling.strategy)
    kv_bytes = _kv_bytes(settings, scheduling, limits, spec)
    if settings.kv_memory is None and settings.num_blocks is None and kv_bytes > max_kv_bytes:
        kv_bytes, settings = max_kv_bytes, _with_kv(settings, max_kv_bytes)
    quantization, group = settings.quantization, settings.quantization_group_size
    weights = weight_bytes(spec, limits.number_format, quantization, group)
    states = limits.max_rows * 3 * state_bytes(spec)
    return MemoryNeeds(weights + kv_bytes + states + _adapter_bytes(settings, spec) + PROCESS_BYTES, settings)


def _of_modules(folder: Path, settings: EngineSettings, max_kv_bytes: int) -> MemoryNeeds:
    """Estimate a model that transformers computes, whose blocks are not known before it is loaded."""
    kv_bytes = max_kv_bytes if settings.kv_memory is None else int(settings.kv_memory * GIB)
    if settings.kv_memory is None and settings.num_blocks is None:
        settings = _with_kv(settings, max_kv_bytes)
    return MemoryNeeds(_file_bytes(folder) + kv_bytes + PROCESS_BYTES, settings)


def _kv_bytes(settings: EngineSettings, scheduling: SchedulingSettings, limits: Limits, spec: ModelSpec) -> int:
    if settings.kv_memory is not None:
        return int(settings.kv_memory * GIB)
    shape, windows = kv_layout(settings, limits, spec)
    item = 1 if shape.quantized else (4 if limits.number_format == "float32" else 2)
    per_block = shape.offsets(lambda layer: shape.block_size * (item * layer.elements + 8 * layer.kv_heads))[1]
    blocks = settings.num_blocks
    if blocks is None:
        chunk = limits.longest_chunk(scheduling)
        blocks = limits.max_rows * max_blocks(limits.max_model_len, shape.block_size, windows, chunk)
    return int(blocks * per_block)


def _with_kv(settings: EngineSettings, nbytes: int) -> EngineSettings:
    return replace(settings, kv_memory=nbytes / GIB, gpu_memory_utilization=None)


def _adapter_bytes(settings: EngineSettings, spec: ModelSpec) -> int:
    plan = plan_adapters(settings)
    return plan.num_slots * 2 * adapter_parameters(spec, plan.max_rank) if plan.num_slots else 0


def _file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for pattern in _WEIGHT_FILES for file in folder.glob(pattern))
