"""Hashes of blocks: of content alone, the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

from inflight.engine.kv_events.block_hashes import as_number, block_hash, root_hash

FIRST = 6465794244802020909  # of tokens 0 … 15
TOLD = "from inflight.engine.kv_events.block_hashes import *; print(block_hash(root_hash('s', 'a'), (1, 2**31)).hex())"


def test_another_process_has_the_same() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", TOLD],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in ("1", "2")
    ]
    assert {one.stdout.strip() for one in runs} == {block_hash(root_hash("s", "a"), (1, 2**31)).hex()}


def test_they_do_not_change_from_version_to_version() -> None:
    """Replicas of two versions serve side by side while one takes the other's place."""
    assert as_number(block_hash(root_hash("", None), tuple(range(16)))) == FIRST


def test_whatever_makes_content_another_makes_another_hash() -> None:
    roots = [root_hash(*one) for one in [("", None), ("", ""), ("a", None), ("", "a"), ("a", "b"), ("ab", None)]]
    hashes = {block_hash(root, tokens) for root in roots for tokens in [(1, 2), (2, 1), (258,)]}
    chained = {block_hash(one, (1, 2)) for one in hashes}
    assert len(hashes) == 18 and len(chained) == 18 and not chained & hashes
