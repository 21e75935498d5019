"""Fixtures that tests of several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from models import write_model

# What a busy machine takes long for is no failure; what hangs, pytest's own limit ends.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("usual", _PATIENT)
settings.register_profile("wide", _PATIENT, max_examples=1000)  # `./check --all`
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
