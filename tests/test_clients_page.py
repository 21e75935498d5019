"""docs/clients.md names the clients that are tested, in the versions that are installed for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(
    path.parent
    for name in ("requirements.txt", "package.json")
    for path in ROOT.glob(f"tests/foreign/*/{name}")
    if path.parent.name not in ("browser", "api_documents")  # what drives one, or reads documents, is no client
)
TABLE = (ROOT / "docs/clients.md").read_text(encoding="utf-8").partition("\n## ")[0]
ROWS = [tuple(one) for one in re.findall(r"^\| ([\w@/-]+) (\d+\.\d+)[ (|]", TABLE, re.MULTILINE)]
NAMED = set(ROWS)


def pinned(folder: Path) -> set[tuple[str, str]]:
    """Packages that a folder asks for, with the two numbers of their versions that are on the page."""
    if (node := folder / "package.json").exists():
        asked = json.loads(node.read_text(encoding="utf-8"))["dependencies"].items()
    else:
        lines = (folder / "requirements.txt").read_text(encoding="utf-8")
        asked = re.findall(r"^([\w-]+)(?:\[\w+\])?==([\d.]+)", lines, re.MULTILINE)
    return {(name, ".".join(version.split(".")[:2])) for name, version in asked}


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_a_client_stands_on_the_page(folder: Path) -> None:
    assert pinned(folder) & NAMED


def test_nothing_else_stands_there() -> None:
    assert len(ROWS) == len(FOLDERS) > 9 and {one for folder in FOLDERS for one in pinned(folder)} >= NAMED
