"""Whether files can be written, told before long work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click


def check_writable(*paths: Path | None, reads: Sequence[Path | None] = ()) -> None:
    """reads: files that are read, and must not be overwritten. Raises click.UsageError."""
    taken = {path.resolve() for path in reads if path is not None and path.is_file()}
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise click.UsageError(f"{path} cannot be written: the folder {folder} does not exist; create it first.")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise click.UsageError(f"{path} cannot be written: permission is denied; choose another place.")
        if path.resolve() in taken:
            raise click.UsageError(f"{path} is given twice, and would be overwritten; use another file.")
        if not path.exists() or path.is_file():
            taken.add(path.resolve())
