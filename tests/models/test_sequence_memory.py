"""The memory of sequences by spec: caches with windows, recurrent states, scales beside bytes."""

from __future__ import annotations

from pathlib import Path

from inflight.models.known import known_model, known_names, read_model
from inflight.models.registry import read_spec
from inflight.models.sequence_memory import kv_bytes_per_token, paged_kv_bytes_per_token, read_bytes, state_bytes
from inflight.models.spec import ModelSpec

PUBLISHED = Path(__file__).parent / "published"


def published(name: str) -> ModelSpec:
    return read_model(name if name in known_names() else str(PUBLISHED / f"{name}.json"))


def test_of_layers_with_a_window_no_more_than_it_is_read() -> None:
    """gpt-oss-20b: 12 layers of 2·8·64 elements see all, 12 see 128 tokens."""
    model, layer = published("gpt-oss-20b"), 2 * 8 * 64 * 2
    assert read_bytes(model, 100) == 24 * layer * 100
    assert read_bytes(model, 1000) == 12 * layer * 1000 + 12 * layer * 128
    assert paged_kv_bytes_per_token(model) == 24 * layer
    assert kv_bytes_per_token(model, 1) == 12 * layer / 2


def test_a_model_of_windows_alone_grows_by_nothing() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    data = {**sizes, "model_type": "mistral", "intermediate_size": 96, "vocab_size": 100, "sliding_window": 32}
    model = read_spec(data)
    assert kv_bytes_per_token(model) == 0
    assert read_bytes(model, 32) == read_bytes(model, 10_000) == 2 * 2 * 2 * 16 * 2 * 32


def test_recurrent_states_have_one_size() -> None:
    """Jamba: 28 layers of 8,192 channels with 16 values each in float32, three inputs of the convolution in bf16."""
    assert state_bytes(published("jamba-v0.1")) == 28 * (8192 * 16 * 4 + 8192 * 3 * 2)
    # Qwen3-Next: 36 layers of 32 heads of 128 x 128, and 8,192 channels of a convolution over four
    assert state_bytes(published("qwen3-next-80b-a3b")) == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert state_bytes(published("deepseek-v3")) == 0


def test_int8_heads_bring_their_scales() -> None:
    model = known_model("qwen2.5-0.5b")
    assert paged_kv_bytes_per_token(model, 1, 4) == 2 * 24 * 2 * (64 + 4)
