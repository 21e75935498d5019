"""The page on complaints: each has threads, and a test or a program that is there, or says that it is not solved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/complaints.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")] for line in PAGE.splitlines() if re.match(r"\| \d", line)
]
THREAD = re.compile(r"\[(\d+)\]\(https://github\.com/[\w.-]+/[\w.-]+/issues/(\d+)\)")


def test_there_are_25_in_order() -> None:
    assert [row[0].split(".")[0] for row in ROWS] == [str(number) for number in range(1, 26)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split(".")[0])
def test_a_complaint_has_threads_and_evidence_that_is_there(row: list[str]) -> None:
    _, threads, here, evidence = row
    found = THREAD.findall(threads)
    assert found and all(shown == linked for shown, linked in found)
    assert re.match(r"Solved|Throughput solved|Half|Not solved", here)
    if here.startswith("Half"):
        assert re.search(r"Not (solved|measured)", here)
    tests, programs = re.findall(r"`(tests/\S+)::(\w+)`", evidence), re.findall(r"`python -m (\S+)`", evidence)
    assert tests or programs or "Not solved" in here
    for path, name in tests:
        assert re.search(rf"\bdef {name}\(", (ROOT / path).read_text(encoding="utf-8")), f"{path}::{name}"
    for name in programs:
        place = ROOT / name.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), name
