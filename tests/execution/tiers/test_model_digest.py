"""A digest of a model's files: of every byte, and read again only where a file may have changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflight.execution.tiers import model_digest as module
from inflight.execution.tiers.model_digest import model_digest


def model(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(name.encode() * 1000)
    return sorted(folder.iterdir())


def test_one_bit_makes_another_model_and_the_same_files_elsewhere_do_not(tmp_path: Path) -> None:
    files, copy = model(tmp_path / "one"), model(tmp_path / "two")
    digest = model_digest(files, tmp_path / "kept")
    assert digest == model_digest(files[::-1], tmp_path / "kept") == model_digest(copy, tmp_path / "kept")
    held = bytearray(copy[1].read_bytes())
    held[500] ^= 1
    copy[1].write_bytes(held)
    assert model_digest(copy, tmp_path / "kept") != digest


def test_what_is_known_is_not_read_again_and_nonsense_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, read = model(tmp_path / "one"), []
    whole = module._digest
    monkeypatch.setattr(module, "_digest", lambda file: read.append(file) or whole(file))
    digest = model_digest(files, tmp_path / "kept")
    assert model_digest(files, tmp_path / "kept") == digest and len(read) == 2
    os.utime(files[0], ns=(1, 1))
    assert model_digest(files, tmp_path / "kept") == digest and len(read) == 3
    (tmp_path / "kept" / "digests.json").write_text("[1, 2")
    assert model_digest(files, tmp_path / "kept") == digest and len(read) == 5
