"""Fixtures that tests of several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from models import write_model

# What a busy machine takes long for is no failure; what hangs, pytest's own limit ends.
settings.register_profile("usual", deadline=None)
settings.register_profile("wide", max_examples=1000, deadline=None)  # `./check --all`
settings.load_profile("usual")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer and a chat template; it says noise."""
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without tokenizer and weights, for `load_format="dummy"`."""
    folder = write_model(tmp_path_factory.mktemp("bare"))
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (folder / name).unlink()
    return folder
