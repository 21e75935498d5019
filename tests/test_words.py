"""Finished packages say things in the field's words: none of those that left comes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "inflight"
FINISHED = (
    *("bench", "build", "cli", "config", "engine", "metrics", "planning", "records", "report", "routing", "simulate"),
    *("testing", "workload", "core", "launch", "ray", "live", "frontend", "text", "execution", "models", "api.py"),
    *("server/anthropic", "server/common", "server/ingress", "server/metrics", "server/model_pool", "server/openai"),
    *("server/preprocessing", "server/processes"),
    *(f"server/{path.name}" for path in sorted((SOURCE / "server").glob("*.py")) if path.name != "loading.py"),
)
UNFINISHED = ("version1.py",)  # the last reads old names
WORDS = (
    r"told|tells?(?!\()|telling",  # report, return, notify; tell() is a file's method
    r"nobody|somebody|whoever|everybody",  # the request, client, sequence
    r"under way",  # in flight
    r"gives? way|gave way|giving way|gives? up",  # is evicted, is preempted; release, abort
    r"hand(?:s|ed|ing)? over|handover",  # KV transfer, export
    r"lent|lender|borrow(?:ed|s)?",  # lease, acquire
    r"promises?|promised",  # SLO, target
    r"in words(?![)\]]|\.| for | if )",  # a message; not a loop over words
)
LEFT = re.compile(rf"\b(?:{'|'.join(WORDS)}|(?-i:MOST|LEAST)(?:_[A-Z]+)?)\b", re.IGNORECASE)
OPENING = re.compile(r'"""(?:What|Of|Who|Those|Nothing|Nobody|Somebody|Whoever|Everybody|That)\b')


@pytest.mark.parametrize("package", FINISHED)
def test_words_that_left_do_not_come_back(package: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in (sorted((SOURCE / package).rglob("*.py")) or [SOURCE / package])
        if path.name not in UNFINISHED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LEFT.search(line) or OPENING.search(line)
    ]
    assert not found, "\n".join(found)
