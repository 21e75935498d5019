"""SmolLM3: Llama's layers, of which every fourth does not rotate."""

from __future__ import annotations

from inflight.models.families.llama import layers
from inflight.models.family import Family

FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    model_types=("smollm3",),
    layers=layers,
    understands=frozenset(("no_rope_layers",)),
    defaults={"num_key_value_heads": 4, "max_position_embeddings": 32_768, "tie_word_embeddings": True},
)
