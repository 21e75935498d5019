"""What a crash or somebody else left in files/ and partial/, sorted at the start.

Knows what is proven to be ours: a file whose row the store has, and a file that the store says was being written (then
it lies in partial/) or deleted. The former take their place, the latter are removed. Everything else, whatever its
name, is moved aside and never removed: a database may be older than its folder, and people put things where they like.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inflight.server.batch.data import DataDirectory
from inflight.server.batch.marker import sync_folder
from inflight.server.batch.records import Proofs


@dataclass(slots=True)
class Findings:
    """gone: ids of leftovers that lie nowhere any more. moved: how many things, to `place`. stuck: how many could not
    be moved, and stay where they are. wrong: by id, what there is of the content of known files: bytes, None where
    there is nothing."""

    gone: set[str] = field(default_factory=set)
    moved: int = 0
    stuck: int = 0
    place: Path | None = None
    wrong: dict[str, int | None] = field(default_factory=dict)

    def sentences(self, lengths: Mapping[str, int]) -> list[str]:
        """For the log."""
        found = []
        strange = "in the data directory not known to be this server's"
        if self.moved:
            found.append(f"Things {strange}, moved aside to {self.place}: {self.moved}; look there, and remove them.")
        if self.stuck:
            found.append(f"Things {strange} that cannot be moved, and stay: {self.stuck}; make room, or move them.")
        if self.wrong:
            first, there = next(iter(self.wrong.items()))
            what = "no content" if there is None else f"{there} of {lengths[first]} bytes"
            found.append(
                f"Stored files that have lost their content: {len(self.wrong)} ({first} has {what}); restore them "
                "from a backup into files/, or delete them."
            )
        return found


def sweep(data: DataDirectory, proofs: Proofs) -> Findings:
    """Raises OSError where the folders cannot be read; what cannot be changed stays as it is."""
    findings, leftovers = Findings(), proofs.writing | proofs.deleting
    for name in sorted(os.listdir(data.partial)):
        path = data.partial / name
        if name in proofs.lengths and _length(path) == proofs.lengths[name] and not os.path.lexists(data.files / name):
            with contextlib.suppress(OSError):  # it is found in partial/ too
                os.rename(path, data.files / name)
        elif name not in proofs.lengths and name in leftovers and _length(path) is not None:
            _remove(path)
        else:
            _move_aside(data, path, findings)
    for name in sorted(os.listdir(data.files)):
        path = data.files / name
        if name in proofs.lengths and _length(path) is not None:
            continue
        if name not in proofs.lengths and name in proofs.deleting and _length(path) is not None:
            _remove(path)
        else:
            _move_aside(data, path, findings)
    if data.reserve.is_foreign():
        _move_aside(data, data.reserve.path, findings)
    folders = (data.files, data.partial)
    for folder in folders:
        sync_folder(folder)
    findings.gone = {one for one in leftovers if not any(os.path.lexists(folder / one) for folder in folders)}
    for file_id, length in proofs.lengths.items():
        there = _length(data.files / file_id)
        if there is None:
            there = _length(data.partial / file_id)
        if there != length:
            findings.wrong[file_id] = there
    return findings


def _length(path: Path) -> int | None:
    """Bytes; None where there is no file of its own."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _move_aside(data: DataDirectory, path: Path, findings: Findings) -> None:
    """To where nothing is."""
    try:
        if findings.place is None:
            findings.place = _new_place(data.unknown)
        folder = findings.place / path.parent.relative_to(data.path)
        folder.mkdir(mode=0o700, exist_ok=True)
        os.rename(path, folder / path.name)
        findings.moved += 1
    except OSError:  # a full disk
        findings.stuck += 1


def _new_place(unknown: Path) -> Path:
    unknown.mkdir(mode=0o700, exist_ok=True)
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        place = unknown / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
            return place
    raise FileExistsError(f"{unknown} holds too many folders of one second")
