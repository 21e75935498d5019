"""The marker: the file that makes a folder a data directory of this server, and names the database that belongs to it.

Knows its form and how it is written without ever being half written; what is concluded from it, `data` knows.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

MARKER = "inflight-data.json"
_NEW = f".{MARKER}.new"
_LARGEST = 4096  # bytes
_ABOUT = "This folder belongs to an inflight server; keep this file beside its batch.sqlite."


@dataclass(frozen=True, slots=True)
class Identity:
    """Which store it is, and how far on. It stands in the marker and in the database.

    store: drawn at random when the store was made. generation: counted up at every start and behind every checkpoint of
    the write-ahead log, first in the database. So a database that is behind its marker is an older copy, or has lost
    its log.
    """

    store: str
    generation: int


def read_marker(folder: Path) -> Identity:
    """Raises OSError; ValueError where it is damaged."""
    with (folder / MARKER).open("rb") as file:
        text = file.read(_LARGEST)
    try:
        fields = json.loads(text)
        store, generation = fields["store"], fields["generation"]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError("no marker") from error
    if not isinstance(store, str) or len(store) != 32 or type(generation) is not int or generation < 1:
        raise ValueError("not the fields of a marker")
    return Identity(store, generation)


def write_marker(folder: Path, identity: Identity) -> None:
    """On return it is on the disk, and at no time there is half of it. Raises OSError."""
    text = json.dumps({"about": _ABOUT, "store": identity.store, "generation": identity.generation}) + "\n"
    new = folder / _NEW
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, folder / MARKER)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in it stays so through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
