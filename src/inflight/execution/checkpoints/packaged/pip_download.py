"""Download pinned wheels with this interpreter's pip, from the indexes that the user's own pip configuration names.

Only wheels are taken, so that no package's code runs. Dependencies are left out.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from inflight.models.errors import ModelError

_POLL_SECONDS = 0.1
_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check")
_RETRIES = ("--retries", "2")  # pip's own five wait half a minute before they say that there is no network
_NO_SPACE = "No space left on device"


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
                progress(_size(temporary))
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


def _size(folder: Path) -> int:
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
