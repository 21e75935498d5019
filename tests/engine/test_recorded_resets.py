"""Resets of the prefix cache stand in the record, so that runs with them replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core.builders import request
from core.harness import Setup
from msgspec import structs

from inflight.records.schema import Line, RecordError, of_kind
from inflight.simulate.replay import replay

from .test_recorder import Recorded, rebuilt_setup

SETUP = Setup(num_blocks=30, max_rows=3, token_budget=8)
PROMPT = [1, 0, 1, 0, 1, 0, 1, 0, 1]


def run_with_resets(setup: Setup, folder: Path) -> list[Line]:
    """Return the records of a run whose cache is reset between requests that share their prompts."""
    recorded = Recorded(setup)
    loop = recorded.loop
    assert loop.reset_prefix_cache() == 0
    for number in range(4):
        loop.add(request(f"r{number}", PROMPT, output=3, n=2))
        assert loop.reset_prefix_cache() is None, "refused, and not recorded"
        loop.run()
        if number % 2:
            loop.take_transferred()
            dropped = loop.reset_prefix_cache()
            assert dropped is not None and dropped > 0
    return recorded.records(folder, request("last", PROMPT, output=3))


def difference(records: list[Line]) -> str | None:
    return replay(records, rebuilt_setup(records[0]).scheduler)[1].difference


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "more",
    [{}, {"host_blocks": 8, "host_is_tier": True}, {"session_eviction": True}, {"snapshots": 6}, {"windows": (0, 6)}],
    ids=str,
)
def test_a_run_whose_cache_was_reset_replays(tmp_path: Path, depth: int, more: dict[str, Any]) -> None:
    records = run_with_resets(replace(SETUP, depth=depth, **more), tmp_path)
    assert len(of_kind(records, "cache_reset")) == 3
    assert difference(records) is None


def test_a_reset_that_is_missing_is_found_out(tmp_path: Path) -> None:
    records = run_with_resets(SETUP, tmp_path)
    resets = of_kind(records, "cache_reset")
    found = difference([one for one in records if one is not resets[1]])
    assert found is not None and "differs in its chunks" in found


def test_a_reset_while_there_is_work_is_refused(tmp_path: Path) -> None:
    records = run_with_resets(SETUP, tmp_path)
    (first, *_) = of_kind(records, "cache_reset")
    changed = structs.replace(first, before_step=1, before_commit=1)
    with pytest.raises(RecordError, match="while there would be work"):
        difference([changed if one is first else one for one in records])
