"""Peers beside a device with memory of its own: blocks and checkpoints go by way of host memory, by copies that come
late, and are never read or written over too early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from models import write_model
from test_prefill_decode import asked, check_released, in_turns

from benchmarks.engine_side import EngineSide
from inflight.build import kv_connectors
from inflight.build.prefill_engines import build_engines
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.execution import computing

from .delayed import DelayedStream
from .opened import on_device
from .test_swapping import Failing

FAMILIES = ("llama", "gemma2", "qwen3_5")


@pytest.fixture(scope="module", params=FAMILIES)
def shape(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return settings of a model with one group, one with windows, and one with recurrent states."""
    model = write_model(tmp_path_factory.mktemp(request.param), request.param, max_position_embeddings=1024)
    return {"model": str(model), "device": "cpu", "num_blocks": 128, "max_num_batched_tokens": 64, "max_num_seqs": 4}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_connectors, "PEER_BYTES", 1 << 20)


def on_streams(monkeypatch: pytest.MonkeyPatch, depth: int, make: Callable[[], DelayedStream]) -> None:
    """Have each engine compute on a device of its own, which copies beside the steps."""
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: on_device(depth=depth, copies=make()))


@pytest.mark.parametrize(("depth", "patience"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_prompts_are_transferred_by_way_of_host_memory(
    shape: dict[str, object], monkeypatch: pytest.MonkeyPatch, depth: int, patience: int, when: str
) -> None:
    """At depth 2 a window may be past a block before it is exported; then the prompt is computed."""
    on_streams(monkeypatch, depth, lambda: DelayedStream(patience))
    with EngineSide("prefill", **shape) as prefill, EngineSide("decode", **shape) as decode:
        cached = in_turns(prefill, decode, range(4), when)
        counts = decode.engine.peer_transfers.counts  # type: ignore[union-attr]
        assert counts.pulls == 4
        if depth == 1 or prefill.engine.capacity.windows == (0,):
            assert all(cached) and not counts.failed_pulls
        check_released(prefill, decode)


def test_what_cannot_be_copied_is_computed(shape: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> DelayedStream:
        stream = Failing(2)
        stream.begun = True
        return stream

    on_streams(monkeypatch, 1, failing)
    with EngineSide("prefill", **shape) as prefill, EngineSide("decode", **shape) as decode:
        cached = in_turns(prefill, decode, range(8), "after")
        assert 0 in cached
        check_released(prefill, decode)


def test_prompts_that_host_memory_cannot_hold_are_computed(
    shape: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_streams(monkeypatch, 1, lambda: DelayedStream(1))
    with EngineSide("decode", **shape) as decode:
        block_bytes = decode.engine.peer_transfers._exports._memory.blocks.block_bytes  # type: ignore[union-attr]
        monkeypatch.setattr(kv_connectors, "PEER_BYTES", 4 * block_bytes)
        with EngineSide("prefill", **shape) as prefill, EngineSide("decode", **shape) as small_decode:
            assert in_turns(prefill, decode, range(2), "after") == [0, 0]
            assert "Host memory holds too many exported blocks" in caplog.text
            check_released(prefill)
            assert in_turns(prefill, small_decode, range(2, 4), "after") == [0, 0]
            check_released(prefill, small_decode)
        check_released(decode)


def test_engines_of_one_process_do_not_share_a_device_with_memory_of_its_own(
    shape: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_streams(monkeypatch, 1, lambda: DelayedStream(1))
    settings = EngineSettings(threads=2, kv_cache_dir=str(tmp_path), **shape)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="prefill_engines transfers blocks of this machine's memory"):
        build_engines(settings, prefill_engines=1)


def test_a_folder_and_peers_have_host_memory_of_their_own(
    shape: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_streams(monkeypatch, 1, lambda: DelayedStream(2))
    with EngineSide("prefill", **shape) as prefill:
        with EngineSide("decode", **shape, kv_cache_dir=str(tmp_path)) as decode:
            assert all(in_turns(prefill, decode, range(3), "after"))
            check_released(prefill, decode)
        with EngineSide("decode", **shape, kv_cache_dir=str(tmp_path)) as decode:
            prefill.add(asked("again", 1))
            decode.add(asked("again", 1))
            assert decode.wait("again") == prefill.wait("again")
            # A folder has the checkpoints that its own engine takes.
            assert decode.cached("again") or decode.engine.capacity.state_snapshots
