"""BERT and what has its layers: attention to both sides, norms of the sums behind attention and MLP, a vector for each
position. RoBERTa and XLM-RoBERTa number positions behind that of padding; DistilBERT does without types of tokens;
MPNet adds learnt numbers to scores, by how far a key is."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.family import Family, attention, dense, positions
from inflight.models.fields import Fields
from inflight.models.pooler import of_encoder
from inflight.models.spec import LayerSpec

_TABLES = {
    "model.embed_tokens": "model.embeddings.word_embeddings",
    "model.embed_positions": "model.embeddings.position_embeddings",
    "model.embed_types": "model.embeddings.token_type_embeddings",
    "model.embed_norm": "model.embeddings.LayerNorm",
}
_NAMES = {
    **_TABLES,
    "model.layers": "model.encoder.layer",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense",
    "mixer_sum_norm": "attention.output.LayerNorm",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
    "mlp_sum_norm": "output.LayerNorm",
}
_DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "type_vocab_size": 2}


def _layer(fields: Fields) -> LayerSpec:
    kind = fields.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ModelError(f"position_embedding_type is {shown(kind)}; computed are absolute positions alone.")
    if fields.flag("is_decoder"):
        raise ModelError("is_decoder is true: the model continues texts, which BERT's layers do not here.")
    mixer = attention(fields, qkv_bias=True, output_bias=True, causal=False)
    return LayerSpec(mixer, dense(fields, gated=False, bias=True), ("mixer sum", "mlp sum"))


def _mpnet_layer(fields: Fields) -> LayerSpec:
    layer = _layer(fields)
    buckets = fields.size("relative_attention_num_buckets")
    return replace(layer, mixer=replace(layer.mixer, relative_buckets=buckets))


# What they have in common.
_FAMILY = partial(
    Family,
    layers=_layer,
    runs=True,
    norm="layer",
    eps="layer_norm_eps",
    rope=lambda fields, mixer, layer: None,
    generates=False,
    embedding_norm=True,
    final_norm=False,
)
BERT = _FAMILY(
    name="bert",
    architectures=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
    model_types=("bert",),
    defaults=_DEFAULTS,
    names=_NAMES,
    pooler=of_encoder("model.pooler.dense", "classifier"),
    positions=positions,
    token_types=lambda fields: fields.size("type_vocab_size"),
    roots=("", "bert."),
)
ROBERTA = _FAMILY(
    name="roberta",
    architectures=(
        *("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
        *("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
        *("CamembertModel", "CamembertForMaskedLM", "CamembertForSequenceClassification"),
    ),
    model_types=("roberta", "xlm-roberta", "camembert"),
    defaults={**_DEFAULTS, "pad_token_id": 1},
    names=_NAMES,
    pooler=of_encoder("classifier.dense", "classifier.out_proj"),
    positions=lambda fields: positions(fields, unused=1 + fields.count("pad_token_id")),
    token_types=lambda fields: fields.size("type_vocab_size"),
    roots=("", "roberta."),
)
MPNET = _FAMILY(
    name="mpnet",
    architectures=("MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"),
    model_types=("mpnet",),
    layers=_mpnet_layer,
    defaults={**_DEFAULTS, "relative_attention_num_buckets": 32},
    names={
        **_NAMES,
        **{f"self_attn.{one}_proj": f"attention.attn.{one}" for one in "qkvo"},
        "mixer_sum_norm": "attention.LayerNorm",
        "model.relative_attention_bias": "model.encoder.relative_attention_bias",
    },
    pooler=of_encoder("classifier.dense", "classifier.out_proj"),
    positions=lambda fields: positions(fields, unused=2),
    roots=("", "mpnet."),
)
DISTILBERT = _FAMILY(
    name="distilbert",
    architectures=("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    model_types=("distilbert",),
    aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512},
    names={
        **_TABLES,
        "model.layers": "model.transformer.layer",
        "self_attn.q_proj": "attention.q_lin",
        "self_attn.k_proj": "attention.k_lin",
        "self_attn.v_proj": "attention.v_lin",
        "self_attn.o_proj": "attention.out_lin",
        "mixer_sum_norm": "sa_layer_norm",
        "mlp.up_proj": "ffn.lin1",
        "mlp.down_proj": "ffn.lin2",
        "mlp_sum_norm": "output_layer_norm",
    },
    pooler=of_encoder("pre_classifier", "classifier", "relu"),
    positions=positions,
    roots=("", "distilbert."),
)
