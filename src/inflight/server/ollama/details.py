"""What ollama's clients are shown of a model's files: family, size, quantization, digest and template."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

import inflight
from inflight.text import ChatTemplate, ChatTemplateError, TokenizerError

if TYPE_CHECKING:
    from inflight.models.gguf.gguf_model import GGUFModel

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_BUILT_IN = Path(inflight.__file__).parent / "builtin_model"


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
        nbytes: Of all of them. modified: When the newest of them came. digest: SHA-256 in hexadecimal, where it is
            known.
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


def describe(source: str) -> Described:
    """Describe a model by what a server was given for it: a path, a name or a hub id; empty: the built-in one. What
    cannot be read is left empty."""
    from inflight.execution.checkpoints.local_models import find_model  # here, as they take memory of every process
    from inflight.models.errors import ModelError

    try:
        path = Path(source).expanduser() if source else _BUILT_IN
        if path.exists():
            digest, files = "", [path] if path.is_file() else [one for one in path.iterdir() if one.is_file()]
        else:
            local = find_model(source)
            path, digest, files = local.path, local.digest, list(local.files)
        stats = [one.stat() for one in files]
        return _described(path, digest, sum(one.st_size for one in stats), max(one.st_mtime for one in stats))
    except (ModelError, OSError, ValueError):
        return Described()


@lru_cache(maxsize=64)
def _described(path: Path, digest: str, nbytes: int, modified: float) -> Described:
    """Raises ModelError."""
    from inflight.models.arithmetic import parameters
    from inflight.models.gguf.choosing import model_in, quantization_of
    from inflight.models.gguf.gguf_model import gguf_at
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
        digest=digest,
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


def _template(model: Path | GGUFModel) -> str:
    try:
        return ChatTemplate.load(model).written
    except (TokenizerError, ChatTemplateError, OSError):
        return ""
