"""Estimated memory of a model before it is loaded, against what it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from text_models import write_embedder

from inflight.build import build_engine, memory_needs
from inflight.build.needs import PROCESS_BYTES
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.models.errors import ModelError

GIB = 2**30
PLAIN = SchedulingSettings()


def test_weights_and_blocks_are_those_of_the_engine() -> None:
    settings = EngineSettings(max_num_seqs=4)
    needs = memory_needs(settings, PLAIN, GIB)
    assert needs.settings == settings
    engine = build_engine(settings, PLAIN)
    try:
        kv = engine.capacity.num_blocks * engine.capacity.block_size * engine.kv_bytes_per_token
    finally:
        engine.loop.close()
    weights = needs.nbytes - PROCESS_BYTES - kv
    assert 0 < weights < 100e6
    quantized = memory_needs(EngineSettings(max_num_seqs=4, quantization="int8-all"), PLAIN, GIB)
    assert quantized.nbytes < needs.nbytes


def test_keys_and_values_are_limited_where_settings_do_not_say(tmp_path: Path) -> None:
    most = 10 << 20
    bounded = memory_needs(EngineSettings(), PLAIN, most)
    assert bounded.settings.kv_memory == most / GIB
    asked = memory_needs(EngineSettings(kv_memory=0.5), PLAIN, most)
    assert asked.settings.kv_memory == 0.5 and asked.nbytes > bounded.nbytes
    blocks = memory_needs(EngineSettings(num_blocks=100), PLAIN, 0)
    assert blocks.settings.kv_memory is None and blocks.nbytes < bounded.nbytes + (32 << 20)
    folder = write_embedder(tmp_path / "m")
    needs = memory_needs(EngineSettings(model=str(folder)), PLAIN, GIB)
    assert needs.settings.kv_memory is None and needs.nbytes < PROCESS_BYTES + (64 << 20)
    with pytest.raises((ModelError, SettingsError), match="nothing"):
        memory_needs(EngineSettings(model=str(tmp_path / "nothing")), PLAIN, GIB)


def test_models_of_transformers_have_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    plain = EngineSettings(model=str(tmp_path), backend="transformers")
    assert memory_needs(plain, PLAIN, GIB).settings.kv_memory == 1
    asked = memory_needs(replace(plain, kv_memory=2), PLAIN, GIB)
    assert asked.settings.kv_memory == 2 and asked.nbytes == PROCESS_BYTES + 2 * GIB + 1000
    assert memory_needs(replace(plain, num_blocks=7), PLAIN, GIB).settings == replace(plain, num_blocks=7)
