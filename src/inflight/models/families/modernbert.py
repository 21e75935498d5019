"""ModernBERT: BERT's task on the layers of today: rotated positions, gated MLPs, norms before each part, no biases, and
a window to both sides in two layers of three. Its first layer reads what was normed before it."""

from __future__ import annotations

from inflight.models.errors import ModelError
from inflight.models.family import FULL, GATE_UP, QKV, SLIDING, Family, attention, dense, windows_of
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.pooler import CLASSIFIER, classifier
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec, Pooler, PoolerLayer, Pooling


def layers(fields: Fields) -> list[LayerSpec]:
    if fields.flag("norm_bias"):
        raise ModelError("norm_bias is true, but ModernBERT's layer norms have no biases; take another checkpoint.")
    period, window = fields.size("global_attn_every_n_layers"), fields.size("local_attention") // 2
    mlp = dense(fields, bias=fields.flag("mlp_bias"), act=fields.text("hidden_activation", "gelu"))
    windows = windows_of(fields, lambda index: index % period != 0, window)
    mixers = [attention(fields, window=one, bias="attention_bias", causal=False) for one in windows]
    first, *others = mixers
    return [LayerSpec(first, mlp, ("before mlp",)), *(LayerSpec(mixer, mlp) for mixer in others)]


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    kind, usual = (SLIDING, fields.raw("local_rope_theta")) if mixer.window else (FULL, fields.raw("global_rope_theta"))
    by_kind = fields.raw("rope_parameters")
    own = by_kind.get(kind) if isinstance(by_kind, dict) else None
    given = {"rope_parameters": own} if isinstance(own, dict) else {"rope_theta": usual}
    return RopeSettings.from_dict(given, mixer.head_dim, fields.size("max_position_embeddings"))


def pooler(architecture: str, fields: Fields) -> Pooler:
    if not architecture.endswith(CLASSIFIER):
        return Pooler(pooling="cls")
    hidden = fields.size("hidden_size")
    layer = PoolerLayer(
        name="head.dense",
        inputs=hidden,
        outputs=hidden,
        activation="gelu",
        bias=fields.flag("classifier_bias"),
        norm="head.norm",
        norm_bias=False,
    )
    pooling: Pooling = "mean" if fields.text("classifier_pooling", "cls") == "mean" else "cls"
    return classifier(fields, Pooler(pooling=pooling, layers=(layer,)), "classifier")


FAMILY = Family(
    name="modernbert",
    architectures=("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    model_types=("modernbert",),
    layers=layers,
    defaults={
        "norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    },
    runs=True,
    norm="layer without bias",
    eps="norm_eps",
    rope=_rope,
    names={
        "model.embed_tokens": "model.embeddings.tok_embeddings",
        "model.embed_norm": "model.embeddings.norm",
        **dict.fromkeys(QKV, "attn.Wqkv"),
        "self_attn.o_proj": "attn.Wo",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "mlp_norm",
        **dict.fromkeys(GATE_UP, "mlp.Wi"),
        "mlp.down_proj": "mlp.Wo",
        "model.norm": "model.final_norm",
    },
    generates=False,
    pooler=pooler,
    embedding_norm=True,
    roots=("", "model."),
)
