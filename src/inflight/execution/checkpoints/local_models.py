"""List, find and delete the models that are on this machine: those pulled by name, and those in the hub's cache."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from inflight.counted import counted
from inflight.execution.checkpoints.hub import hub_id_of
from inflight.execution.checkpoints.hub_download import PARTIAL, cache_root, pull_lock
from inflight.execution.checkpoints.packaged import model_cache
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.pull_progress import ProgressLine, locked
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import models_among, quantization_of
from inflight.models.gguf.gguf_model import is_gguf

Source = Literal["package", "hub"]


class LocalModel(Struct, frozen=True):
    """A model in a cache.

    Attributes:
        name: As users type it: a short name, `owner/name`, or `owner/name:Q4_K_M` for a GGUF file.
        path: Its folder or GGUF file, as an engine opens it.
        files: All its files, as snapshots name them.
        nbytes: Of all its files.
        modified: When the newest of them came, in seconds since 1970.
        digest: SHA-256 of its first weights file in hexadecimal; empty where the cache does not say.
        source: The cache that holds it.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    nbytes: int
    modified: float
    digest: str
    source: Source

    @property
    def quantization(self) -> str:
        """Return the quantization that the file's name says; empty of a folder."""
        return quantization_of(self.path.name) if is_gguf(self.path) else ""


class Unfinished(Struct, frozen=True):
    """A download that was interrupted, and goes on at the next pull: its repository, and the bytes that came."""

    repository: str
    nbytes: int
    files: tuple[Path, ...]


def local_models() -> list[LocalModel]:
    """Return the models in both caches, those with short names first. Nothing is asked of the hub."""
    found = [*_packaged()]
    for folder in sorted(cache_root().glob("models--*--*")):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            found += _of_repository(folder)
    return found


def find_model(name: str) -> LocalModel:
    """Return the cached model of a name; `owner/name` also means the only GGUF file of that repository.

    Raises:
        ModelError: No cache holds it, or several models are meant.
    """
    models = local_models()
    wanted = name.removesuffix(":latest").lower()
    found = [one for one in models if one.name.lower() == wanted]
    if not found and name not in CATALOGUE:
        repository, tag = hub_id_of(name)
        wanted = f"{repository}:{tag}".lower() if tag else f"{repository}:".lower()
        found = [
            one for one in models if one.name.lower() == wanted or (not tag and one.name.lower().startswith(wanted))
        ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.name for one in found)
        raise ModelError(f"{name} means {counted(len(found), 'model')} here: {names}; name one of them.")
    raise ModelError(
        f"{name} is not on this machine: the caches of `inflight pull` and of the hub hold "
        f"{counted(len(models), 'model')}; `inflight pull {name}` fetches it."
    )


def models_below(folder: Path) -> list[tuple[str, Path]]:
    """Return the GGUF models and the model folders that lie in a folder, each as its path below it."""
    inside = sorted(one for one in folder.iterdir() if one.is_dir() and (one / "config.json").is_file())
    files = [one.relative_to(folder).as_posix() for one in sorted(folder.rglob("*.gguf"))]
    return [(one.name, one) for one in inside] + [(names[0], folder / names[0]) for names in models_among(files)]


def unfinished_downloads() -> list[Unfinished]:
    """Return what interrupted downloads left in the hub's cache."""
    found: dict[str, list[Path]] = {}
    for path in sorted(cache_root().glob(f"models--*--*/blobs/*{PARTIAL}")):
        found.setdefault(path.parent.parent.name.removeprefix("models--").replace("--", "/", 1), []).append(path)
    return [
        Unfinished(repository, sum(one.stat().st_size for one in paths), tuple(paths))
        for repository, paths in found.items()
    ]


def delete_model(model: LocalModel) -> int:
    """Delete a model's files from its cache, and return the bytes that are freed.

    Files that other models or revisions use, too, stay. A pull of the same repository is waited for. The caller checks
    that no server uses the model.

    Raises:
        OSError: They cannot be deleted.
    """
    if model.source == "package":
        model_cache.delete(CATALOGUE[model.name])
        return model.nbytes
    folder = cache_root() / model.files[0].relative_to(cache_root()).parts[0]
    with locked(pull_lock(folder), model.name, ProgressLine()):
        return _delete_from(folder, model)


def _delete_from(folder: Path, model: LocalModel) -> int:
    before = _bytes_below(folder)
    names = {file.relative_to(folder / "snapshots").parts[1:] for file in model.files}
    for file in _snapshot_files(folder):
        if file.relative_to(folder / "snapshots").parts[1:] in names:
            blob = file.resolve()
            file.unlink()
            is_of_cache = blob.parent == (folder / "blobs").resolve()  # not a file that a link of the user names
            if is_of_cache and not any(other.resolve() == blob for other in _snapshot_files(folder)):
                blob.unlink(missing_ok=True)
    if not any(_is_weights(one) for one in _snapshot_files(folder)):
        shutil.rmtree(folder)  # the lock's file stays: who waits for it and who comes later have to mean the same
        return before
    return before - _bytes_below(folder)


def delete_unfinished(download: Unfinished) -> int:
    """Delete what an interrupted download left, and return the bytes that are freed. Raises OSError."""
    with locked(pull_lock(download.files[0].parent.parent), download.repository, ProgressLine()):
        for path in download.files:
            path.unlink(missing_ok=True)
    return download.nbytes


def _packaged() -> Iterator[LocalModel]:
    for name, model in CATALOGUE.items():
        if (path := model_cache.cached(model)) is not None:
            files = tuple(sorted(one for one in path.rglob("*") if one.is_file())) if path.is_dir() else (path,)
            yield _model(name, path, files, "" if path.is_dir() else model.sha256, "package")


def _of_repository(folder: Path) -> list[LocalModel]:
    repository = folder.name.removeprefix("models--").replace("--", "/", 1)
    snapshots = sorted((folder / "snapshots").glob("*"), key=lambda one: one.stat().st_mtime, reverse=True)
    found: dict[str, LocalModel] = {}
    for snapshot in snapshots:  # the newest that has a model is what the name means
        for model in _of_snapshot(repository, snapshot):
            found.setdefault(model.name, model)
    return [*found.values()]


def _of_snapshot(repository: str, snapshot: Path) -> Iterator[LocalModel]:
    files = {one.relative_to(snapshot).as_posix(): one for one in sorted(snapshot.rglob("*")) if one.is_file()}
    ggufs = models_among(files)
    for names in ggufs:
        if all(one in files for one in names):
            paths = tuple(files[one] for one in names)
            yield _model(f"{repository}:{quantization_of(names[0], ggufs)}", paths[0], paths, None, "hub")
    if not ggufs and "config.json" in files:
        yield _model(repository, snapshot, tuple(files.values()), None, "hub")


def _model(name: str, path: Path, files: tuple[Path, ...], digest: str | None, source: Source) -> LocalModel:
    stats = [one.stat() for one in files]
    if digest is None:  # of the hub, whose blobs are named by their digests
        weights = [one.resolve().name for one in files if _is_weights(one)]
        digest = weights[0] if weights and len(weights[0]) == 64 else ""
    nbytes, modified = sum(one.st_size for one in stats), max(one.st_mtime for one in stats)
    return LocalModel(name, path, files, nbytes, modified, digest, source)


def _is_weights(file: Path) -> bool:
    return is_gguf(file) or file.suffix == ".safetensors"


def _snapshot_files(folder: Path) -> list[Path]:
    return [one for one in (folder / "snapshots").rglob("*") if one.is_file()]


def _bytes_below(folder: Path) -> int:
    return sum(one.lstat().st_size for one in folder.rglob("*") if one.is_file() and not one.is_symlink())
