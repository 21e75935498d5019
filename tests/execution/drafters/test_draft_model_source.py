"""Which models draft for which, and the sentences for those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from models import FAMILIES, SIZES

from inflight.execution.drafters.draft_model_source import check_pair, draft_kv_shape
from inflight.execution.kv.kv_groups import kv_groups
from inflight.execution.memory import kv_shape
from inflight.models.errors import ModelError
from inflight.models.registry import read_spec
from inflight.models.spec import ModelSpec

LENGTH = 160


def spec(family: str, **settings: Any) -> ModelSpec:
    config = {**SIZES, **FAMILIES[family], **settings}
    config["model_type"] = config["architectures"][0].removesuffix("ForCausalLM").lower()
    return read_spec(config, to_run=True)


@pytest.mark.parametrize("model", ["llama", "gemma2", "deepseek_v3", "qwen3"])
@pytest.mark.parametrize("draft", ["llama", "gemma2", "deepseek_v3"])
def test_any_families_go_together(model: str, draft: str) -> None:
    """All layers of the draft model lie in blocks of the group that keeps every position."""
    of_model, of_draft = spec(model), spec(draft)
    groups = kv_groups(of_model, 16, LENGTH)
    check_pair(of_model, of_draft, groups.windows)
    shape = draft_kv_shape(of_draft, kv_shape(of_model, 16, True, groups))
    assert shape.groups == 1 and shape.block_size == 16 and shape.quantized
    assert len(shape.layers) == len(of_draft.layers) and None not in shape.layers


@pytest.mark.parametrize(
    ("model", "draft", "sentence"),
    [
        (spec("llama"), spec("llama", vocab_size=500), "has a vocabulary of 500 tokens, and .* one of 384"),
        (spec("llama"), spec("qwen3_5"), "2 of 3 layers of the draft model .* keep a recurrent state"),
        (spec("mistral"), spec("llama"), "looks back over 40 tokens at most.* set --max-model-len 40 or less"),
    ],
)
def test_what_does_not_go_together_is_said(model: ModelSpec, draft: ModelSpec, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        check_pair(model, draft, kv_groups(model, 16, LENGTH).windows)
