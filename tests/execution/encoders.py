"""Encoders and embedding models with random weights, by `transformers`; and its results.

Knows torch and transformers, as `oracle` does; imported inside fixtures only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
}
QWEN = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
DISTIL = {"vocab_size": 320, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 130}
MODERN = {
    **SHAPE,
    "num_hidden_layers": 4,
    "local_attention": 16,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
}
MPNET = {**SHAPE, "max_position_embeddings": 132, "pad_token_id": 1}
BEHIND_PADDING = {**SHAPE, "max_position_embeddings": 132, "pad_token_id": 1, "type_vocab_size": 1}
# Of each the class, its settings, and for which tokens it is asked (None: it is a classifier).
ENCODERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "bert": ("BertModel", SHAPE, "cls"),
    "bert_relu": ("BertModel", {**SHAPE, "hidden_act": "relu"}, "cls"),
    "bert_classifier": ("BertForSequenceClassification", {**SHAPE, "num_labels": 3}, None),
    "roberta": ("RobertaModel", {**BEHIND_PADDING, "hidden_act": "gelu_new"}, "cls"),
    "xlm_roberta_reranker": ("XLMRobertaForSequenceClassification", {**BEHIND_PADDING, "num_labels": 1}, None),
    "distilbert": ("DistilBertModel", DISTIL, "cls"),
    "distilbert_classifier": ("DistilBertForSequenceClassification", {**DISTIL, "num_labels": 2}, None),
    "mpnet": ("MPNetModel", MPNET, "cls"),
    "mpnet_classifier": ("MPNetForSequenceClassification", {**MPNET, "num_labels": 2}, None),
    "modernbert": ("ModernBertModel", MODERN, "cls"),
    "modernbert_classifier": (
        "ModernBertForSequenceClassification",
        {**MODERN, "num_labels": 3, "classifier_pooling": "mean"},
        None,
    ),
    "qwen3": ("Qwen3Model", QWEN, "last"),
    "qwen3_classifier": ("Qwen3ForSequenceClassification", {**QWEN, "num_labels": 3}, None),
    "embedding_gemma": (
        "Gemma3TextModel",
        {**QWEN, "use_bidirectional_attention": True, "sliding_window": 16, "sliding_window_pattern": 3},
        "mean",
    ),
    "llama_reward": ("LlamaForSequenceClassification", {**QWEN, "num_labels": 1}, None),
}


@dataclass
class Encoder:
    folder: Path
    model: Any

    def hidden(self, tokens: np.ndarray, second_at: int | None = None) -> np.ndarray:
        """float32[T, E] behind the last layer."""
        return self._asked(tokens, second_at).last_hidden_state[0].numpy()

    def scores(self, tokens: np.ndarray, second_at: int | None = None) -> np.ndarray:
        return self._asked(tokens, second_at).logits[0].numpy()

    def _asked(self, tokens: np.ndarray, second_at: int | None) -> Any:
        ids = torch.tensor(tokens[None].astype(np.int64))
        more = {"attention_mask": torch.ones_like(ids)}
        if second_at is not None:
            more["token_type_ids"] = (torch.arange(ids.shape[1]) >= second_at)[None].long()
        with torch.no_grad():
            return self.model(ids, **more)


def _randomise(model: Any) -> None:
    """So that every part counts, and tokens stay different: norms of sums would soon make all of them alike, if what
    the layers add were larger than the vectors of tokens."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower():
                parameter.uniform_(0.5, 1.5) if name.endswith("weight") else parameter.normal_(0, 0.1)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
            elif "embed" in name or "relative" in name:
                parameter.normal_(0, 1)
            else:
                looks = any(
                    part in name
                    for part in ("query", "key", "q_lin", "k_lin", "qkv", "q_proj", "k_proj", "attn.q", "attn.k")
                )
                parameter.normal_(0, 0.25 if looks else 0.08)


def build(name: str, folder: Path) -> Encoder:
    kind, settings, _ = ENCODERS[name]
    cls = getattr(transformers, kind)
    torch.manual_seed(sum(name.encode()))
    model = cls(cls.config_class(**settings, attn_implementation="eager")).eval()
    _randomise(model)
    model.save_pretrained(folder)
    return Encoder(folder, model)
