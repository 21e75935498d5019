"""What an engine's blocks of keys and values are, for whoever takes them over: another engine, or this one after a
restart.

Knows everything that their bits depend on. What is compared, and how a difference is told, `kv_exchange.description`
knows.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

from inflight.build.limits import Limits
from inflight.config.engine import EngineSettings
from inflight.core.types.sampling import Adapter
from inflight.execution.backends.protocol import Device, KVShape
from inflight.execution.checkpoints.files_digest import computed_files, files_digest
from inflight.execution.kv_exchange.description import KVDescription
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.spec import ModelSpec

_INT8 = "int8 with mixed channels of keys"  # by `channel_mixing`; earlier versions held keys as they are
_MIXED = " with mixed spans"  # of weights by `grouped.hold_mixed`; earlier versions rounded them as they are
_LENGTH_CHANGES = ("dynamic", "longrope")  # rotations that depend on the longest sequence that an engine allows


def describe_kv(
    release: str,
    settings: EngineSettings,
    limits: Limits,
    spec: ModelSpec,
    backend: Device,
    shape: KVShape,
    digest: str,
) -> KVDescription:
    """release: of this program. digest: of the model's files. Adapters come later, and go."""
    quantization = str(limits.quantization.value)
    rule = _MIXED if quantization.startswith("int8") else ""
    quantized = quantization + rule, settings.quantization_group_size
    length = limits.max_model_len if any(one.kind in _LENGTH_CHANGES for one in spec.ropes) else 0
    return KVDescription(
        release=release,
        model=settings.model or "built-in",
        weights=_digest(repr((digest, spec, quantized, length))),
        dtype=backend.dtype,
        kv_format=("fp8" if shape.is_fp8 else _INT8) if shape.quantized else backend.dtype,
        kernels=backend.name,
        layers=_digest(repr(shape.layers)),
        block_size=shape.block_size,
        block_bytes=backend.bytes_per_block(shape),
        tensor_parallel=settings.tensor_parallel_size,
    )


def model_digest(settings: EngineSettings, files: Path | GGUFModel, remembered: Path | None) -> Future[str]:
    """Of the model's files, read aside while weights are packed. remembered: as in `files_digest`."""

    def read() -> str:
        if settings.load_format == "dummy":
            return f"dummy {settings.seed}"
        found = [one.path for one in files.files] if isinstance(files, GGUFModel) else computed_files(files)
        return files_digest(found, remembered)

    with ThreadPoolExecutor(1, "digest") as aside:
        digest = aside.submit(read)
        aside.shutdown(wait=False)
    return digest


def adapter_digest(adapter: Adapter) -> str:
    """Of its files. Raises OSError."""
    return files_digest(computed_files(Path(adapter.path)))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
