"""What an engine's blocks of keys and values are, for whoever takes them over: another engine, or this one after a
restart.

Knows everything that their bits depend on. What is compared, and how a difference is told, `kv_exchange.description`
knows.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from inflight.build.limits import Limits
from inflight.config.engine import EngineSettings
from inflight.core.types.adapter import Adapter
from inflight.execution.backends.protocol import Device, KVShape
from inflight.execution.checkpoints.files_digest import files_digest
from inflight.execution.kv_exchange.description import KVDescription
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.spec import ModelSpec

_LENGTH_CHANGES = ("dynamic", "longrope")  # rotations that depend on the longest sequence that an engine allows


def describe_kv(
    release: str,
    settings: EngineSettings,
    limits: Limits,
    spec: ModelSpec,
    files: Path | GGUFModel,
    backend: Device,
    shape: KVShape,
    adapters: tuple[Adapter, ...] = (),
) -> KVDescription:
    """release: of this program. adapters: those that are there now. Raises OSError for files that are gone."""
    return KVDescription(
        release=release,
        model=settings.model or "built-in",
        weights=_weights(settings, limits, spec, files),
        dtype=backend.dtype,
        kv_format=("fp8" if shape.is_fp8 else "int8") if shape.quantized else backend.dtype,
        kernels=backend.name,
        layers=_digest(repr(shape.layers)),
        block_size=shape.block_size,
        block_bytes=backend.bytes_per_block(shape),
        tensor_parallel=settings.tensor_parallel_size,
        adapters={one.name: adapter_digest(one) for one in adapters},
    )


def adapter_digest(adapter: Adapter) -> str:
    """Of its files. Raises OSError."""
    return files_digest(Path(adapter.path))


def _weights(settings: EngineSettings, limits: Limits, spec: ModelSpec, files: Path | GGUFModel) -> str:
    """Of the files, and of what is made of them."""
    if settings.load_format == "dummy":
        told = f"dummy {settings.seed}"
    elif isinstance(files, GGUFModel):
        told = " ".join(files_digest(one.path) for one in files.files)
    else:
        told = files_digest(files)
    quantized = limits.quantization.value, settings.quantization_group_size
    length = limits.max_model_len if any(one.kind in _LENGTH_CHANGES for one in spec.ropes) else 0
    return _digest(repr((told, spec, quantized, length)))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
