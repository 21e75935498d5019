"""The digest of a model's files: equal for copies, another for other weights, blind to what only text is made with; of
every byte, and read again only where a file may have changed."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from inflight.execution.checkpoints import files_digest as module
from inflight.execution.checkpoints.files_digest import computed_files, files_digest

MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"hidden_size": 64}')
    (made / "model.safetensors").write_bytes(random.Random(1).randbytes(3 * MB))
    (made / "tokenizer.json").write_text("{}")
    return made


def digest(path: Path, remembered: Path | None = None) -> str:
    return files_digest(computed_files(path), remembered)


def test_a_copy_has_the_same(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert digest(tmp_path / "copy") == digest(folder) == files_digest(computed_files(folder)[::-1])


def test_other_weights_and_configurations_have_others(folder: Path) -> None:
    seen = {digest(folder)}
    (folder / "config.json").write_text('{"hidden_size": 65}')
    seen.add(digest(folder))
    (folder / "model.safetensors").write_bytes(random.Random(2).randbytes(3 * MB))
    seen.add(digest(folder))
    (folder / "more.safetensors").write_bytes(b"1")
    seen.add(digest(folder))
    seen.add(digest(folder / "more.safetensors"))
    assert len(seen) == 5


@pytest.mark.parametrize("at", [0, MB + 12_345, 3 * MB - 1])
def test_one_bit_makes_another_model(folder: Path, at: int) -> None:
    before, weights = digest(folder), folder / "model.safetensors"
    held = bytearray(weights.read_bytes())
    held[at] ^= 1
    weights.write_bytes(held)
    assert digest(folder) != before


def test_what_text_is_made_with_is_not_looked_at(folder: Path) -> None:
    before = digest(folder)
    (folder / "tokenizer.json").write_text('{"other": 1}')
    (folder / "README.md").write_text("words")
    assert digest(folder) == before


def test_what_is_known_is_not_read_again_and_nonsense_is_passed_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, read = tmp_path / "kept", list[Path]()
    whole = module._digest
    monkeypatch.setattr(module, "_digest", lambda file: read.append(file) or whole(file))
    before = digest(folder, kept)
    assert digest(folder, kept) == before and len(read) == 2
    os.utime(folder / "config.json", ns=(1, 1))
    assert digest(folder, kept) == before and len(read) == 3
    (kept / "digests.json").write_text("[1, 2")
    assert digest(folder, kept) == before and len(read) == 5
