"""Files → settings, whatever kind of file each is: told by its beginning."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inflight.records.result import KINDS
from inflight.report.reading import read_record
from inflight.report.results import read_results
from inflight.report.run import Setting

_LOOK = 4096  # bytes of a file's beginning


class SourceError(ValueError):
    """A file holds nothing that a report can be made of."""


def read_sources(paths: Sequence[Path]) -> list[Setting]:
    """A setting for each file, in their order, named after it; files of one name get their folder's before it."""
    names = Counter(path.stem for path in paths)
    found = []
    for path in paths:
        setting = read_source(path)
        found.append(setting if names[path.stem] == 1 else replace(setting, name=f"{path.parent.name}/{path.stem}"))
    return found


def read_source(path: Path) -> Setting:
    """Raises SourceError, RecordError or ResultError with what was looked for."""
    with path.open("rb") as file:
        beginning = file.read(_LOOK)
    if not beginning.strip():
        raise SourceError(f"{path} is empty: {len(beginning)} bytes; give {_LOOKED_FOR}.")
    kind = _kind(beginning)
    if kind in ("header", "step", "request"):
        return read_record(path)
    if kind in KINDS:
        return read_results(path)
    found = (
        f"it has kind {kind!r}" if kind is not None else f"it begins with {beginning[:40].decode(errors='replace')!r}"
    )
    raise SourceError(f"{path} is nothing that a report can be made of: {found}. Looked for {_LOOKED_FOR}.")


_LOOKED_FOR = (
    'a step record (JSON lines, the first with "kind": "header", written by --record of inflight run or serve), or a '
    f'result (a JSON object with "kind": {", ".join(json.dumps(kind) for kind in KINDS)}, written by --output of '
    "inflight bench)"
)


def _kind(beginning: bytes) -> Any:
    """Of the first object, which may go on for longer than was looked at: its `kind` is its first key."""
    text = beginning.decode(errors="replace").lstrip("\ufeff \t\r\n")
    if not text.startswith("{"):
        return None
    try:
        key, end = json.JSONDecoder().raw_decode(text[1:].lstrip())
        rest = text[1:].lstrip()[end:].lstrip()
        value, _ = json.JSONDecoder().raw_decode(rest[1:].lstrip()) if rest.startswith(":") else (None, 0)
    except json.JSONDecodeError:
        return None
    return value if key == "kind" else None
