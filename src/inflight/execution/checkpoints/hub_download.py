"""Download files of a hub repository into the hub's cache: room is checked before, bytes are resumed and digested.

The hub's client begins a file again that was interrupted, and does not compare what came with its digest. So files with
a digest are downloaded here, by the client's own means, under the names that the client looks for.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlparse

from msgspec import Struct

from inflight.execution.checkpoints.pull_progress import PullStep, Report, locked, megabytes
from inflight.models.errors import ModelError

PARTIAL = ".partial"
_ASKING_SECONDS = 10.0
_PIECE = 1 << 20  # bytes that are written at once


class RemoteFile(Struct, frozen=True):
    """sha256: None for small files, which the hub keeps without one."""

    size: int
    sha256: str | None


class Repository(Struct, frozen=True):
    """A repository's files at one commit.

    Attributes:
        model: The name as the user typed it.
        id: `owner/name`.
        revision: As the user gave it, None: the main branch.
        commit: That the revision means now.
        files: By their names.
    """

    model: str
    id: str
    revision: str | None
    commit: str
    files: dict[str, RemoteFile]

    def size_of(self, names: Sequence[str]) -> int:
        return sum(self.files[name].size for name in names)


def cache_root() -> Path:
    """Return the hub's cache of this user, which may not exist."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repository_folder(repository: str) -> Path:
    """Return the folder of a repository in the hub's cache, which may not exist."""
    return cache_root() / f"models--{repository.replace('/', '--')}"


def pull_lock(folder: Path) -> Path:
    """Return the file that pulls of a repository lock. folder: of the repository in the cache."""
    return folder.parent / ".locks" / folder.name / "pull.lock"


def cached_snapshot(repository: str, revision: str | None) -> Path | None:
    """Return the folder of a revision's files as they were pulled last; None where none were."""
    folder = repository_folder(repository)
    try:
        commit = (folder / "refs" / (revision or "main")).read_text("utf-8").strip()
    except OSError:
        commit = revision or ""
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def ask_hub(model: str, repository: str, revision: str | None, report: Report) -> Repository:
    """Ask the hub for a repository's files. Raises errors of the hub's client."""
    from huggingface_hub import HfApi

    report(PullStep("asking", model))
    found = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=_ASKING_SECONDS)
    files = {
        one.rfilename: RemoteFile(one.size or 0, None if one.lfs is None else one.lfs.sha256)
        for one in found.siblings or ()
    }
    return Repository(model, repository, revision, str(found.sha), files)


def download(repository: Repository, names: Sequence[str], report: Report) -> Path:
    """Download files that are not cached yet, and return the folder of all cached ones.

    A second process that wants files of the same repository waits. What an interrupted download left is used by the
    next.

    Raises:
        ModelError: The disk has no room, or what came has another digest.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    folder = repository_folder(repository.id)
    snapshot = folder / "snapshots" / repository.commit
    if all((snapshot / name).exists() for name in names):
        return snapshot  # of a cache that may be read-only
    disable_progress_bars()
    try:
        with locked(pull_lock(folder), repository.model, report):
            missing = [name for name in names if not (snapshot / name).exists()]
            _check_space(repository, missing, folder)
            for name in missing:
                _download(repository, name, folder, report)
            taken = [glob.escape(name) for name in names]
            path = snapshot_download(repository.id, revision=repository.revision, allow_patterns=taken)
            _delete_partials(repository, folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise ModelError(
            f"{repository.model} cannot be stored in {folder}: {error.strerror}. It takes "
            f"{megabytes(repository.size_of(names))}; make room, or set HF_HOME to a folder that can hold it."
        ) from None
    if missing:
        pulled = f"{repository.model}: pulled, {megabytes(repository.size_of(names))} in {path}"
        report(PullStep("done", repository.model, pulled))
    return Path(path)


def _check_space(repository: Repository, names: Sequence[str], folder: Path) -> None:
    needed = 0
    for name in names:
        file = repository.files[name]
        blob = folder / "blobs" / (file.sha256 or "")
        if file.sha256 is None or not blob.exists():
            partial = blob.with_name(blob.name + PARTIAL)
            needed += file.size - (partial.stat().st_size if file.sha256 and partial.exists() else 0)
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if (free := shutil.disk_usage(existing).free) < needed:
        raise ModelError(
            f"{repository.model} takes {megabytes(needed)} more, but {folder} has {megabytes(free)} free; make room "
            "(`inflight list` has the sizes of models, `inflight rm NAME` deletes one), or set HF_HOME to a folder "
            "that has more."
        )


def _download(repository: Repository, name: str, folder: Path, report: Report) -> None:
    """Download one file's blob; files without a digest are left to the hub's client."""
    from huggingface_hub import constants

    file = repository.files[name]
    if file.sha256 is None or file.size > getattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", file.size):
        return
    blob = folder / "blobs" / file.sha256
    if blob.exists():
        return
    partial = _receive(repository, name, report)
    report(PullStep("verifying", repository.model, digest=file.sha256, completed=file.size, total=file.size))
    _verify(partial, file.sha256, name, repository)
    os.replace(partial, blob)


def download_head(repository: Repository, name: str, nbytes: int, report: Report) -> Path:
    """Return a file with a digest of which at least the first `nbytes` are here; `download` continues it."""
    folder = repository_folder(repository.id)
    blob = folder / "blobs" / str(repository.files[name].sha256)
    if blob.exists():
        return blob
    with locked(pull_lock(folder), repository.model, report):
        return blob if blob.exists() else _receive(repository, name, report, nbytes)


def _receive(repository: Repository, name: str, report: Report, nbytes: int | None = None) -> Path:
    """Continue a file's download until it has `nbytes`, None: all of them. Return the unfinished file."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    file = repository.files[name]
    partial = repository_folder(repository.id) / "blobs" / f"{file.sha256}{PARTIAL}"
    partial.parent.mkdir(parents=True, exist_ok=True)
    if partial.exists() and partial.stat().st_size > file.size:
        partial.unlink()
    limit = file.size if nbytes is None else nbytes
    if partial.exists() and partial.stat().st_size >= limit:
        return partial
    url = hf_hub_url(repository.id, name, revision=repository.commit)
    location = get_hf_file_metadata(url).location  # before a file is made: a gated repository says so here
    headers = build_hf_headers()
    if urlparse(location).netloc != urlparse(url).netloc:
        headers.pop("authorization", None)  # a token is for the hub, not for the store that it names
    constants.DOWNLOAD_CHUNK_SIZE = _PIECE  # the client's own loses ten megabytes at an interrupt
    with partial.open("ab") as opened, contextlib.suppress(_Enough):
        out = _Counted(opened, repository.model, file, report, limit)
        http_get(
            location,
            out,  # type: ignore[arg-type]
            resume_size=out.tell(),
            headers=headers,
            expected_size=file.size,
            displayed_filename=name,
        )
    return partial


def _delete_partials(repository: Repository, folder: Path) -> None:
    """Delete what an interrupted download left of files that the repository has no more."""
    wanted = {one.sha256 for one in repository.files.values()}
    for path in (folder / "blobs").glob(f"*{PARTIAL}"):
        if path.name.removesuffix(PARTIAL) not in wanted:
            path.unlink(missing_ok=True)


def _verify(path: Path, sha256: str, name: str, repository: Repository) -> None:
    with path.open("rb", buffering=0) as opened:
        digest = file_digest(opened, "sha256").hexdigest()
    if digest != sha256:
        path.unlink()
        raise ModelError(
            f"the SHA-256 of {name} of {repository.id}, as it came, is {digest}, but the hub says {sha256}; it is not "
            "kept. Pull it again."
        )


class _Enough(Exception):
    """A file has as many bytes as are wanted of it."""


class _Counted:
    """A file that reports how much it holds, as the hub's client writes it. Raises _Enough at `limit` bytes."""

    def __init__(self, file: BinaryIO, model: str, remote: RemoteFile, report: Report, limit: int) -> None:
        self._file, self._model, self._remote, self._report, self.limit = file, model, remote, report, limit
        self._size = file.tell()
        self._notify()

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._size += written
        self._notify()
        if self.limit <= self._size < self._remote.size:
            raise _Enough
        return written

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def truncate(self) -> int:
        self._size = self._file.truncate()
        return self._size

    def tell(self) -> int:
        return self._size

    def _notify(self) -> None:
        one = self._remote
        self._report(PullStep("downloading", self._model, "", one.sha256 or "", self._size, one.size))
