"""One folder and one loaded tokenizer of each kind, for all tests of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.text import Tokenizer

from .builders import BUILDERS, CONFIGS, write_folder

Folders = dict[str, Path]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    base = tmp_path_factory.mktemp("tokenizers")
    return {name: write_folder(base / name, build(), CONFIGS[name]) for name, build in BUILDERS.items()}


@pytest.fixture(scope="session")
def tokenizers(folders: Folders) -> dict[str, Tokenizer]:
    return {name: Tokenizer.load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session", params=BUILDERS)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]
