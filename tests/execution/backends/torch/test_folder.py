"""A folder beside a device with memory of its own: blocks and checkpoints go by way of host memory, by copies that come
late, and are never read or written over too early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models import write_model

from inflight.core.kv import manager
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.kv.offload import staging
from inflight.execution.kv.offload.folder_tier import FolderTier

from ...test_depth import Said, run
from .delayed import DelayedStream
from .opened import on_device
from .test_engine import opened
from .test_swapping import Failing

FAMILIES = ("llama", "gemma2", "qwen3_5")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one with one group, one with windows, and one with recurrent states."""
    return write_model(tmp_path_factory.mktemp(request.param), request.param, max_position_embeddings=1024)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take checkpoints every few blocks, and have host memory for few blocks, so that transfers come in pieces."""
    monkeypatch.setattr(manager, "CheckpointSpacing", lambda: CheckpointSpacing(32, 16))
    monkeypatch.setattr("inflight.build.executor.STAGING_BLOCKS", 5)


def asked() -> list[Request]:
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple((3 * at + number // 3) % 380 for at in range(90 + 13 * number)),
            params=SamplingParams(temperature=0.8 * (number % 2), max_tokens=20, ignore_eos=True),
            seed=number,
        )
        for number in range(6)
    ]


@pytest.fixture(scope="module")
def wanted(model: Path) -> Said:
    return run(opened(model, on_device()), asked())


def said_and_brought(model: Path, folder: Path, stream: DelayedStream, depth: int) -> tuple[Said, Any]:
    engine = opened(model, on_device(depth=depth, copies=stream), kv_cache_dir=str(folder))
    found = run(engine, asked())
    stats = engine.loop.stats().kv.tiers
    engine.loop.close()
    return found, stats


@pytest.mark.parametrize(("depth", "patience"), [(1, 1), (2, 3)])
def test_a_restarted_engine_begins_behind_what_was_stored(
    model: Path, wanted: Said, tmp_path: Path, depth: int, patience: int
) -> None:
    first, stats = said_and_brought(model, tmp_path, DelayedStream(patience), depth)
    assert first == wanted and stats.stored > staging.STAGING_STATES
    again, stats = said_and_brought(model, tmp_path, DelayedStream(patience), depth)
    assert again == wanted and stats.brought > 5 and not stats.failed


def test_what_cannot_be_copied_or_read_is_computed(
    model: Path, wanted: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said_and_brought(model, tmp_path, DelayedStream(2), 2)[0] == wanted
    stream = Failing(2)
    stream.begun = True
    found, _ = said_and_brought(model, tmp_path, stream, 2)
    assert found == wanted

    def lose(self: FolderTier, number: int, into: memoryview) -> None:
        raise OSError("lost")

    monkeypatch.setattr(FolderTier, "_read_one", lose)
    found, stats = said_and_brought(model, tmp_path, DelayedStream(2), 2)
    assert found == wanted and stats.failed and not stats.brought
