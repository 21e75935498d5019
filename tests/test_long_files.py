"""The files that workers take first."""

from __future__ import annotations

from pathlib import Path

from long_files import LONG


def test_the_long_files_are_files() -> None:
    """A name that is none would leave its file to the end."""
    here = Path(__file__).parent
    assert [name for name in LONG if not (here / name).is_file()] == []
    assert len(set(LONG)) == len(LONG)
