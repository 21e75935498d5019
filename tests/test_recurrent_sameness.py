"""Whole engines of models with recurrent state: prefixes, preemption, samples and snapshots change no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models import write_model
from test_sameness import SCHEDULES, SHAPES, Case, alone, answer, check, mix, opened, run

from inflight.core.kv import manager
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.types.sampling import SamplingParams

MODELS: dict[str, dict[str, Any]] = {
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "block_multiple_of": 16,
        "conv_L_cache": 3,
        "partial_rotary_factor": 1.0,
        "tie_word_embeddings": True,
    },
    "qwen3_next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "partial_rotary_factor": 0.25,
        "head_dim": 16,
    },
}
NAMES = ("as it comes", "crumbs", "whole prompts", "odd chunks", "little memory", "little memory, no cache")
OTHERS = ("static", "dynamic", "continuous, swap", "swap", "swap without the cache", "auto, fair", "prefix")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_model(tmp_path_factory.mktemp(name), "phi3", **settings) for name, settings in MODELS.items()}


@pytest.fixture(params=[(32, 16), pytest.param((1024, 64), marks=pytest.mark.wide)], ids=["dense", "usual"])
def spacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CheckpointSpacing:
    found = CheckpointSpacing(*request.param)
    monkeypatch.setattr(manager, "CheckpointSpacing", lambda: found)
    return found


@pytest.mark.parametrize("family", MODELS)
def test_any_engine_says_what_each_said_alone(
    family: str, folders: dict[str, Path], spacing: CheckpointSpacing
) -> None:
    folder, cases = folders[family], mix(seed=1, count=20)
    expected = alone(folder, cases)
    assert len({str(one) for one in expected}) > 16, "the answers differ from each other"
    for name in NAMES:
        preemptions, cached = check(folder, cases, expected, **SHAPES[name])
        assert (preemptions > 0) == ("little memory" in name), name
        if spacing.min_gap == 16 and name == "as it comes":
            assert cached > 0
    for name in OTHERS:
        check(folder, cases, expected, **SCHEDULES[name])


@pytest.mark.parametrize("family", MODELS)
def test_a_second_round_begins_from_snapshots(
    family: str, folders: dict[str, Path], spacing: CheckpointSpacing
) -> None:
    cases = mix(seed=11, count=10)
    expected = alone(folders[family], cases)
    with opened(folders[family]) as engine:
        for _ in range(3):
            assert [answer(output) for output in run(engine, cases)] == expected
        stats = engine.loop.stats()
    assert stats.kv.checkpoint_hits > 0 and stats.kv.used_checkpoints > 0


@pytest.mark.parametrize("family", MODELS)
def test_one_slot_and_many_samples(family: str, folders: dict[str, Path], spacing: CheckpointSpacing) -> None:
    folder, prompt = folders[family], tuple(range(30, 130))
    cases = [Case(prompt, SamplingParams(n=4, seed=5, temperature=1.0, logprobs=2, max_tokens=40), 0), *mix(3, 6)]
    expected = alone(folder, cases)
    with opened(folder, state_memory=1e-4) as engine:
        assert engine.capacity.state_snapshots >= 1
        for _ in range(2):
            assert [answer(output) for output in run(engine, cases)] == expected
