"""The file of a probe: what it has learnt, of one model and each of its adapters, from one start to the next."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inflight.execution.length_probe.probe import LengthProbe
from inflight.private_files import open_private, part_of

VERSION = 1
_SAMPLED_BYTES = 64 * 2**10  # of each end of a model's file
MAX_BYTES = 256 * 2**20
_DAMAGED = (  # as NumPy, zip and zlib find it; memory lacks where a header claims more than the file holds
    *(ValueError, KeyError, EOFError, TypeError, OverflowError, MemoryError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


class ProbeFileError(ValueError):
    """A file holds no probe of this model; the text is a sentence."""


def arrays_of(probes: Mapping[str, LengthProbe]) -> dict[str, Any]:
    """Return what a file holds of probes by their adapters' names ("": of the model itself), as it is now: copies."""
    arrays: dict[str, Any] = {"version": np.array(VERSION), "salts": np.array([one.salt for one in probes.values()])}
    arrays["adapters"] = np.array(list(probes))
    for number, probe in enumerate(probes.values()):
        arrays |= {f"{number}.{name}": np.array(values) for name, values in probe.state().items()}
    return arrays


def write_probes(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a file, as a whole or not at all. Raises OSError."""
    beside = part_of(path)
    try:
        with open(beside, "wb", opener=open_private) as file:
            np.savez(file, **arrays)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def load_probes(path: Path, hidden_size: int, salt: str) -> dict[str, LengthProbe]:
    """Read probes by their adapters' names; none where there is no file.

    Args:
        path: The file.
        hidden_size: Of the model.
        salt: Of the model.

    Raises:
        ProbeFileError: It is damaged, or of another model.
        OSError: It cannot be read.
    """
    if not path.exists():
        return {}
    if path.stat().st_size > MAX_BYTES:
        raise ProbeFileError(f"The probe in {path} has more than {MAX_BYTES >> 20} MiB, so it is not one.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _probes(arrays, path, hidden_size, salt)
    except ProbeFileError:
        raise
    except _DAMAGED as error:
        raise ProbeFileError(f"The probe in {path} is damaged ({error}), and a new one is begun.") from None


def _probes(arrays: Mapping[str, Any], path: Path, hidden_size: int, salt: str) -> dict[str, LengthProbe]:
    if int(arrays["version"]) != VERSION:
        raise ProbeFileError(f"The probe in {path} is of version {arrays['version']}, and a new one is begun.")
    found: dict[str, LengthProbe] = {}
    for number, (adapter, known) in enumerate(zip(arrays["adapters"].tolist(), arrays["salts"].tolist(), strict=True)):
        if known != salted(salt, adapter):
            raise ProbeFileError(f"The probe in {path} is of another model, and a new one is begun.")
        probe = found[adapter] = LengthProbe(hidden_size, known)
        head = f"{number}."
        probe.restore({name.removeprefix(head): one for name, one in arrays.items() if name.startswith(head)})
    return found


def model_salt(name: str, files: Sequence[Path]) -> str:
    """Return a name of a model: its own, and a digest of its files' names, sizes, beginnings and ends, which differ
    between models that were trained separately. Raises OSError."""
    digest = hashlib.blake2b(name.encode(), digest_size=12, person=b"inflight-probe")
    for path in sorted(files, key=lambda one: one.name):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return f"{name} {digest.hexdigest()}"


def salted(salt: str, adapter: str) -> str:
    """Return the salt of a model with an adapter."""
    return f"{salt}/{adapter}"
