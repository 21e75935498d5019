"""Descriptions of models' files, as ollama's clients show them: family, size, quantization, digest and template."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from inflight.models.gguf.gguf_model import GGUFModel, gguf_at, is_gguf, part_paths
from inflight.text import ChatTemplate, ChatTemplateError, TokenizerError

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class OllamaDetails(Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str = ""
    quantization_level: str = ""


class Described(Struct, frozen=True, kw_only=True):
    """A model's files.

    Attributes:
        nbytes: Of all of them. modified: When the newest of them came. digest: In hexadecimal: another one for other
            files.
        info: By the names of GGUF's fields.
        template: Source of the chat template; empty: it has none.
        is_embedder: It makes vectors, and continues no text.
    """

    details: OllamaDetails = OllamaDetails()
    nbytes: int = 0
    modified: str = "1970-01-01T00:00:00Z"
    digest: str = ""
    info: dict[str, Any] = {}
    template: str = ""
    is_embedder: bool = False


def describe(path: str) -> Described:
    """Describe a model's folder or file. What cannot be read is left empty.

    Args:
        path: Empty for a model that is not on this machine.
    """
    from inflight.models.errors import ModelError  # here, as these take memory of every process

    try:
        if not path:  # which pathlib reads as the current folder
            return Described(digest=sha256(b"").hexdigest())
        model = Path(path)
        files = part_paths(model) if is_gguf(model) else [one for one in model.iterdir() if one.is_file()]
        stats = [one.stat() for one in files]
        return _described(model, sum(one.st_size for one in stats), max(one.st_mtime for one in stats))
    except (ModelError, OSError, ValueError):
        return Described(digest=sha256(path.encode()).hexdigest())


@lru_cache(maxsize=64)
def _described(path: Path, nbytes: int, modified: float) -> Described:
    """Raises ModelError."""
    from inflight.models.arithmetic import parameters
    from inflight.models.gguf.choosing import model_in, quantization_of
    from inflight.models.registry import read_folder
    from inflight.models.weight_format import described

    gguf = gguf_at((model_in(path) or path) if path.is_dir() else path)
    spec = read_folder(gguf or path)
    plain = spec.checkpoint_dtype or ""
    quantization = plain if spec.weight_format is None else described(spec.weight_format)
    quantization = quantization if gguf is None else quantization_of(gguf.path.name)
    family, count = spec.family, parameters(spec)
    return Described(
        details=OllamaDetails(
            format="safetensors" if gguf is None else "gguf",
            family=family,
            families=(family,),
            parameter_size=f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M",
            quantization_level=_DTYPES.get(quantization, quantization),
        ),
        nbytes=nbytes,
        modified=datetime.fromtimestamp(modified, UTC).isoformat().replace("+00:00", "Z"),
        digest=_digest(path, nbytes, modified),
        info={
            "general.architecture": family,
            "general.parameter_count": count,
            f"{family}.context_length": spec.default_model_len,
            f"{family}.embedding_length": spec.hidden_size,
            f"{family}.block_count": len(spec.layers),
            f"{family}.vocab_size": spec.vocab_size,
        },
        template=_template(gguf or path),
        is_embedder=spec.head is None,
    )


def _digest(path: Path, nbytes: int, modified: float) -> str:
    """Return the SHA-256 by which the hub's cache names a file; of other files one that changes as they do."""
    name = path.resolve().name
    return name if len(name) == 64 else sha256(f"{path} {nbytes} {modified}".encode()).hexdigest()


def _template(model: Path | GGUFModel) -> str:
    try:
        return ChatTemplate.load(model).written
    except (TokenizerError, ChatTemplateError, OSError):
        return ""
