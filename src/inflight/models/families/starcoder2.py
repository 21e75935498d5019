"""StarCoder2: layer norms, a plain MLP, biases everywhere, one table."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    model_types=("starcoder2",),
    layers=lambda fields: LayerSpec(
        attention(fields, window=fields.window, bias="use_bias"),
        dense(fields, gated=False, bias=fields.flag("use_bias")),
    ),
    understands=frozenset(("use_bias",)),
    defaults={
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": True,
        "norm_epsilon": 1e-5,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    runs=True,
    norm="layer",
    eps="norm_epsilon",
    names={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
)
