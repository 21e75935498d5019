"""Digest all bytes of model files and adapters, so that cached blocks of different models have different names."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from hashlib import blake2b, file_digest
from pathlib import Path

_REMEMBERED = "digests.json"
_SUFFIXES = (".safetensors", ".gguf", ".json")
_NOT_OF_WEIGHTS = ("tokenizer", "generation_config", "special_tokens", "vocab", "merges", "chat_template")


def computed_files(path: Path) -> list[Path]:
    """List the files of a folder that decide what is computed, or the one file; those of its tokenizer do not."""
    if path.is_file():
        return [path]
    found = (one for one in path.iterdir() if one.suffix in _SUFFIXES and one.is_file())
    return [one for one in found if not one.name.startswith(_NOT_OF_WEIGHTS)]


def files_digest(files: Sequence[Path], remembered: Path | None = None) -> str:
    """Digest files; the same files in another folder have the same digest. remembered: a folder that stores digests;
    None: none. Reading gigabytes takes seconds: a file of the same path, length and time is not read again. Raises
    OSError for files that cannot be read."""
    known = {} if remembered is None else _known(remembered / _REMEMBERED)
    digest = blake2b(digest_size=16, person=b"inflight-files")
    found = {}
    for file in sorted(files, key=lambda one: one.name):
        stat = file.stat()
        key = f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        found[key] = known.get(key) or _digest(file)
        digest.update(f"{file.name}\0{found[key]}\0".encode())
    if remembered is not None and not found.keys() <= known.keys():
        _remember(remembered / _REMEMBERED, {**known, **found})
    return digest.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb", buffering=0) as opened:
        return file_digest(opened, lambda: blake2b(digest_size=16)).hexdigest()


def _known(path: Path) -> dict[str, str]:
    """Read remembered digests; none where the file is missing or damaged."""
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {key: value for key, value in stored.items() if isinstance(value, str) and len(value) == 32}


def _remember(path: Path, known: dict[str, str]) -> None:
    """Store digests. Those that cannot be stored are computed again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".digests", delete=False) as aside:
            json.dump(known, aside)
        os.replace(aside.name, path)
    except OSError:
        return
