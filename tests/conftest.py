"""Fixtures that tests of several parts share, and in which order workers take the files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from long_files import LONG
from models import write_model

# Triton looks when it is imported, which others' libraries do, too: kernels run in its interpreter, without a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests start more than a hundred servers. Where no bytecode may be written beside sources, each would compile all that
# it imports: half of what it does until it is ready. Workers and servers write it elsewhere.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# What a busy machine takes long for is no failure; what hangs, pytest's own limit ends.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What is drawn from day to day follows from the test alone, so that a change is refused for what it does; others are
# drawn with `./check --all`.
settings.register_profile("usual", _PATIENT, max_examples=50, derandomize=True)
settings.register_profile("wide", _PATIENT, max_examples=1000)
settings.load_profile("usual")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For workers that share the files out in the order in which they are collected (--no-loadscope-reorder)."""
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
        items.sort(key=lambda item: places.get(item.path, len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three for two cores: many tests wait for servers."""
    return (3 * (os.cpu_count() or 1) + 1) // 2


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
