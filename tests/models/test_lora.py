"""Fields of `adapter_config.json`, and by how much an adapter counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.models.errors import ModelError
from inflight.models.lora import read_lora_config


def written(folder: Path, **config: Any) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, **config}))
    return folder


def test_factors_are_pefts(tmp_path: Path) -> None:
    """https://github.com/huggingface/peft: alpha over rank, or over its root; patterns match the end of a name."""
    plain = read_lora_config(written(tmp_path))
    assert plain.factor("model.layers.0.self_attn.q_proj", 8) == 2
    rooted = read_lora_config(written(tmp_path, use_rslora=True))
    assert rooted.factor("model.layers.0.self_attn.q_proj", 16) == 4
    patterns = {"layers.1.mlp.up_proj": 4, "q_proj": 32}
    of_some = read_lora_config(written(tmp_path, alpha_pattern=patterns))
    assert of_some.factor("model.layers.1.mlp.up_proj", 8) == 0.5
    assert of_some.factor("model.layers.11.mlp.up_proj", 8) == 2
    assert of_some.factor("model.layers.3.self_attn.q_proj", 8) == 4


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "merge_and_unload"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"trainable_token_indices": [1]}, "vectors of tokens"),
        ({"alora_invocation_tokens": [5]}, "aLoRA"),
        ({"some_new_field": 3}, "some_new_field is 3"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much'"),
        ({"lora_alpha": True}, "lora_alpha is True"),
        ({"alpha_pattern": {"(": 3}}, "no pattern"),
        ({"alpha_pattern": [3]}, "alpha_pattern"),
    ],
)
def test_what_would_compute_something_else_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=r"adapter_config\.json") as refusal:
        read_lora_config(written(tmp_path, **config))
    assert sentence in str(refusal.value)


def test_fields_that_change_nothing_may_say_what_they_like(tmp_path: Path) -> None:
    given = {"lora_dropout": 0.1, "target_modules": ["q_proj"], "peft_version": "9", "some_new_field": None}
    assert read_lora_config(written(tmp_path, init_lora_weights="gaussian", **given)).alpha == 16


def test_no_folder_and_no_file_have_errors_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no folder"):
        read_lora_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"holds no adapter_config\.json"):
        read_lora_config(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        read_lora_config(tmp_path)
