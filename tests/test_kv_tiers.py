"""A request says the same with tiers and without, before a restart and after it, also where files are damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from models import write_model
from test_sameness import Case, alone, answer, mix, opened, run

from inflight.build import build_engine, kv_transfer
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.kv import manager
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.execution.kv.offload.folder_tier import FolderTier

SHAPES = {
    "as it comes": {},
    "few rows": {"max_num_seqs": 2, "max_num_batched_tokens": 24},
    "little memory": {"max_num_seqs": 12, "num_blocks": 16, "watermark": 0.0},
    "swap": {"preemption": "swap", "swap_space": 0.001, "max_num_seqs": 12, "num_blocks": 16, "watermark": 0.0},
    "static": {"strategy": "static", "batch_size": 5, "max_wait": 0.01},
    "int8": {"kv_cache_dtype": "int8"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama"))


def brought(model: Path, kept: Path, cases: list[Case], expected: list[object], **shape: object) -> int:
    """Blocks, of a run whose answers are as they should be."""
    with opened(model, kv_cache_dir=str(kept), **shape) as engine:
        outputs = run(engine, cases)
        tiers = engine.loop.stats().kv.tiers
    for number, (output, same) in enumerate(zip(outputs, expected, strict=True)):
        assert answer(output) == same, f"request {number}"
    assert tiers is not None and not tiers.failed
    return tiers.brought


@pytest.mark.parametrize("name", SHAPES)
def test_answers_are_the_same_with_a_folder_and_after_a_restart(name: str, folder: Path, tmp_path: Path) -> None:
    cases = mix(seed=5, count=16)
    shape = SHAPES[name]
    expected = alone(folder, cases, **{key: value for key, value in shape.items() if key == "kv_cache_dtype"})
    brought(folder, tmp_path, cases, expected, **shape)
    assert brought(folder, tmp_path, cases, expected, **shape) > 4, "a restarted engine begins behind what was kept"


def test_blocks_of_int8_keys_as_earlier_versions_held_them_are_not_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = mix(seed=5, count=16)
    expected = alone(folder, cases, kv_cache_dtype="int8")
    with monkeypatch.context() as earlier:
        earlier.setattr(kv_transfer, "_INT8", "int8")
        brought(folder, tmp_path, cases, expected, kv_cache_dtype="int8")
    assert brought(folder, tmp_path, cases, expected, kv_cache_dtype="int8") == 0


@pytest.mark.parametrize("more", [{}, {"preemption": "swap", "swap_space": 0.001}])
def test_answers_are_the_same_with_the_host_as_a_tier(more: dict[str, object], folder: Path) -> None:
    cases = mix(seed=8, count=16) * 2
    with opened(folder, kv_cache_host=0.01, max_num_seqs=12, num_blocks=16, watermark=0.0, **more) as engine:
        outputs = run(engine, cases)
        stats = engine.loop.stats()
    assert [answer(output) for output in outputs] == alone(folder, cases)
    assert stats.kv.used_host_blocks > 0 == stats.kv.swapped_sequences


def test_answers_are_the_same_whatever_is_evicted_first(folder: Path) -> None:
    cases = mix(seed=9, count=16) * 2
    with opened(folder, kv_eviction="sessions", max_num_seqs=12, num_blocks=24, watermark=0.0) as engine:
        outputs = run(engine, cases)
    assert [answer(output) for output in outputs] == alone(folder, cases)


def damage(files: list[Path]) -> None:
    """Alter, truncate, exchange or leave each file."""
    dice = random.Random(0)
    for path in files:
        whole = bytearray(path.read_bytes())
        match dice.randrange(4):
            case 0:
                whole[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
            case 1:
                del whole[dice.randrange(len(whole)) :]
            case 2:
                whole = bytearray(dice.choice(files).read_bytes())
        path.write_bytes(whole)


def test_damaged_files_change_no_answer(folder: Path, tmp_path: Path) -> None:
    cases = mix(seed=6, count=12)
    expected = alone(folder, cases)
    brought(folder, tmp_path, cases, expected)
    damage(sorted(tmp_path.rglob("*.kv")))
    with opened(folder, kv_cache_dir=str(tmp_path)) as engine:
        outputs = run(engine, cases)
        tiers = engine.loop.stats().kv.tiers
    assert [answer(output) for output in outputs] == expected
    assert tiers is not None and tiers.failed


# Windows beside full attention, of every layer, and beside layers that share keys; recurrent states beside attention.
SEVERAL_GROUPS = ("gemma2", "mistral", "gemma4", "qwen3_5", "lfm2")
RECURRENT = ("qwen3_5", "lfm2")


@pytest.fixture(scope="module", params=SEVERAL_GROUPS)
def grouped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A family with more than one group, and a model of it."""
    family: str = request.param
    return family, write_model(tmp_path_factory.mktemp(family), family, max_position_embeddings=1024)


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take checkpoints every few blocks."""
    monkeypatch.setattr(manager, "CheckpointSpacing", lambda: CheckpointSpacing(32, 16))


@pytest.mark.usefixtures("dense")
def test_every_group_is_kept_in_a_folder_and_what_is_lost_is_computed(
    grouped: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, model = grouped
    cases = mix(seed=5, count=14)
    expected = alone(model, cases)
    brought(model, tmp_path, cases, expected)
    with opened(model) as engine:
        capacity = engine.capacity
    assert (capacity.state_snapshots > 0) == (family in RECURRENT)
    assert capacity.windows != (0,) or family in RECURRENT
    files = sorted(tmp_path.rglob("*.kv"))
    assert len({path.stat().st_size for path in files}) == 1 + (family in RECURRENT)
    assert brought(model, tmp_path, cases, expected) > 0, "a restarted engine begins behind what was kept"
    scarce = {"num_blocks": 16 * len(capacity.windows), "max_num_seqs": 12, "watermark": 0.0}
    brought(model, tmp_path, cases, expected, **scarce, kv_cache_host=0.001)

    with monkeypatch.context() as losing:
        read, count = FolderTier._read_one, iter(range(10**6))

        def lose(self: FolderTier, number: int, into: memoryview) -> None:
            if not next(count) % 5:
                raise OSError("lost")
            read(self, number, into)

        losing.setattr(FolderTier, "_read_one", lose)
        with opened(model, kv_cache_dir=str(tmp_path)) as engine:
            assert [answer(output) for output in run(engine, cases)] == expected
            assert engine.loop.stats().kv.tiers.failed

    damage(files)
    with opened(model, kv_cache_dir=str(tmp_path)) as engine:
        assert [answer(output) for output in run(engine, cases)] == expected
        assert engine.loop.stats().kv.tiers.failed


@pytest.mark.usefixtures("dense")
@pytest.mark.parametrize("more", [{}, {"preemption": "swap", "swap_space": 0.001}])
def test_answers_of_several_groups_are_the_same_with_the_host_as_a_tier(
    more: dict[str, object], grouped: tuple[str, Path]
) -> None:
    family, model = grouped
    cases = mix(seed=8, count=14) * 2
    expected = alone(model, cases)
    with opened(model, kv_cache_host=0.01, max_num_seqs=12, num_blocks=32, watermark=0.0, **more) as engine:
        outputs = run(engine, cases)
        stats, capacity = engine.loop.stats(), engine.capacity
    assert [answer(output) for output in outputs] == expected
    assert stats.kv.used_host_blocks > 0 == stats.kv.swapped_sequences
    if family in RECURRENT:
        with opened(model, max_num_seqs=12, num_blocks=32) as engine:
            assert capacity.state_snapshots > engine.capacity.state_snapshots, "a part of the host's memory is theirs"


def test_another_model_of_the_same_shape_finds_nothing(folder: Path, tmp_path: Path) -> None:
    cases = mix(seed=7, count=8)
    brought(folder, tmp_path / "kept", cases, alone(folder, cases))
    other = write_model(tmp_path / "other")
    file = next(other.glob("*.safetensors"))
    held = bytearray(file.read_bytes())
    held[-2] ^= 1  # of one number one bit
    file.write_bytes(held)
    assert brought(other, tmp_path / "kept", cases, alone(other, cases)) == 0


def test_what_cannot_be_kept_is_refused_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    def refused(**given: object) -> str:
        with pytest.raises(SettingsError) as refusal:
            build_engine(EngineSettings(model=str(folder), **given)).loop.close()  # type: ignore[arg-type]
        return str(refusal.value)

    (tmp_path / "file").write_text("")
    assert "cannot be made" in refused(kv_cache_dir=str(tmp_path / "file" / "below"))
    assert "--no-prefix-caching" in refused(kv_cache_dir=str(tmp_path), enable_prefix_caching=False)
    assert "--kv-cache-dir" in refused(kv_cache_disk=3.0)
    assert "known are lru, sessions" in refused(kv_eviction="fifo")
    assert "above 0" in refused(kv_cache_dir=str(tmp_path), kv_cache_disk=0.0)
