"""Published models: their parameters and the bytes of their caches come out of the fields of their config.json."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from inflight.models import known
from inflight.models.arithmetic import active_parameters, parameters, weight_bytes
from inflight.models.known import known_model, known_names
from inflight.models.registry import read_spec
from inflight.models.sequence_memory import kv_bytes_per_token
from inflight.models.spec import ModelSpec
from inflight.simulate.hardware import packing

FOLDER, KNOWN_FOLDER = Path(__file__).parent / "published", Path(known.__file__).parent / "well_known"
FILES = [*FOLDER.glob("*.json"), *KNOWN_FOLDER.glob("*.json")]
READ: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in FILES}
PUBLISHED = {name: data for name, data in READ.items() if "_parameters" in data}
# billions of parameters as published, GB of weights in bf16, KiB of keys and values per token in bf16
WELL_KNOWN = {
    "bge-m3": (0.568, 1.14, 0),
    "llama-3-8b": (8.03, 16.1, 128),
    "llama-3-70b": (70.55, 141.1, 320),
    "llama-3.1-8b": (8.03, 16.1, 128),
    "llama-3.1-70b": (70.55, 141.1, 320),
    "llama-2-7b": (6.74, 13.5, 512),
    "llama-2-70b": (68.98, 138.0, 320),
    "qwen2.5-0.5b": (0.49, 1.0, 12),
    "qwen2.5-7b": (7.62, 15.2, 56),
    "qwen2.5-72b": (72.70, 145.4, 320),
    "qwen3-0.6b": (0.60, 1.2, 112),
    "qwen3-8b": (8.19, 16.4, 144),
    "qwen3-14b": (14.77, 29.5, 160),
    "qwen3-32b": (32.76, 65.5, 256),
    "mistral-7b": (7.24, 14.5, 128),
    "mixtral-8x7b": (46.7, 93.4, 128),
}


def spec(name: str) -> ModelSpec:
    return read_spec(PUBLISHED[name], name=name)


def test_there_are_many_and_each_says_where_it_is_from() -> None:
    assert len(PUBLISHED) >= 20
    assert all(len(data["_source"]) > 10 for data in PUBLISHED.values())
    known = [READ[path.stem] for path in KNOWN_FOLDER.glob("*.json")]
    others = list(tomllib.loads((KNOWN_FOLDER / "names.toml").read_text())["shapes"].values())
    assert all(date.fromisoformat(data["_date"]) and data["_source"] for data in known)
    assert all(isinstance(other["date"], date) and other["source"] for other in others)
    assert all(other["like"] in READ for other in others)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_come_out_within_a_hundredth(name: str) -> None:
    assert parameters(spec(name)) == pytest.approx(PUBLISHED[name]["_parameters"], rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_of_the_cache_per_token_come_out_exactly(name: str) -> None:
    assert kv_bytes_per_token(spec(name)) == PUBLISHED[name]["_kv_bytes_per_token"]


@pytest.mark.parametrize("name", [name for name, data in PUBLISHED.items() if "_active_parameters" in data])
def test_active_parameters_come_out(name: str) -> None:
    """Check models whose publishers count all that a token passes, tables included."""
    assert active_parameters(spec(name)) == pytest.approx(PUBLISHED[name]["_active_parameters"], rel=0.03)


def test_every_well_known_name_has_its_figures() -> None:
    shapes = set(tomllib.loads((KNOWN_FOLDER / "names.toml").read_text())["shapes"])
    assert set(known_names()) - shapes == set(WELL_KNOWN) | {
        name for name in PUBLISHED if not (FOLDER / f"{name}.json").exists()
    }


@pytest.mark.parametrize(("name", "figures"), WELL_KNOWN.items())
def test_well_known_sizes_come_out(name: str, figures: tuple[float, float, float]) -> None:
    model = known_model(name)
    billions, gigabytes, kib = figures
    assert parameters(model) / 1e9 == pytest.approx(billions, abs=0.006, rel=2e-3)
    assert weight_bytes(model, packing("bf16")) / 1e9 == pytest.approx(gigabytes, rel=0.02)
    assert kv_bytes_per_token(model) / 1024 == kib
    assert model.name == name


def test_layers_that_are_equal_are_one_object() -> None:
    large = spec("llama-3.1-405b")
    assert len(large.layers) == 126 and len({id(layer) for layer in large.layers}) == 1
    jamba = spec("jamba-v0.1")
    assert len({id(layer) for layer in jamba.layers}) == len(set(jamba.layers)) == 3
