"""A digest of a model's or an adapter's files, by which two engines tell whether they have the same ones.

Files of weights are looked at in places: their head, which names every tensor, and a few thousand bytes here and there,
so that gigabytes take milliseconds. It tells models, quantizations and fine-tunings apart, whose bytes differ
everywhere; it is no proof against somebody who alters single bytes. Knows files; not what is in them.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

_WHOLE = 1 << 20  # bytes up to which a file is read to its end
_PLACES, _PIECE = 64, 4096
_SUFFIXES = (".safetensors", ".gguf", ".json")
_NOT_OF_WEIGHTS = ("tokenizer", "generation_config", "special_tokens", "vocab", "merges", "chat_template")


def files_digest(path: Path) -> str:
    """Of a folder, or of one file. Raises OSError."""
    told = blake2b(digest_size=16, person=b"inflight-files")
    for file in _files(path):
        size = file.stat().st_size
        told.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as opened:
            if size <= _WHOLE:
                told.update(opened.read())
            else:
                _update(told, opened, size)
    return told.hexdigest()


def _files(path: Path) -> list[Path]:
    """What text is read and written with is none of what is computed."""
    if path.is_file():
        return [path]
    found = (one for one in path.iterdir() if one.suffix in _SUFFIXES and one.is_file())
    return sorted(one for one in found if not one.name.startswith(_NOT_OF_WEIGHTS))


def _update(told: Any, opened: Any, size: int) -> None:
    told.update(opened.read(_WHOLE // 4))
    for place in range(_PLACES):
        opened.seek((size - _PIECE) * place // (_PLACES - 1))
        told.update(opened.read(_PIECE))
