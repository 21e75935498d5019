"""The digest of a model's files: equal for copies, another for other weights, blind to what only text is made with."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from inflight.execution.checkpoints.files_digest import files_digest

MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"hidden_size": 64}')
    (made / "model.safetensors").write_bytes(random.Random(1).randbytes(3 * MB))
    (made / "tokenizer.json").write_text("{}")
    return made


def test_a_copy_has_the_same(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert files_digest(tmp_path / "copy") == files_digest(folder)


def test_other_weights_and_configurations_have_others(folder: Path) -> None:
    seen = {files_digest(folder)}
    (folder / "config.json").write_text('{"hidden_size": 65}')
    seen.add(files_digest(folder))
    (folder / "model.safetensors").write_bytes(random.Random(2).randbytes(3 * MB))
    seen.add(files_digest(folder))
    (folder / "more.safetensors").write_bytes(b"1")
    seen.add(files_digest(folder))
    seen.add(files_digest(folder / "more.safetensors"))
    assert len(seen) == 5


def test_what_text_is_made_with_is_not_looked_at(folder: Path) -> None:
    before = files_digest(folder)
    (folder / "tokenizer.json").write_text('{"other": 1}')
    (folder / "README.md").write_text("words")
    assert files_digest(folder) == before
