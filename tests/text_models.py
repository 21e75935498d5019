"""Tiny models that read bidirectionally, with a tokenizer, written in a moment without torch: as folders of
sentence-transformers and of classifiers look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models import asked_for
from safetensors.numpy import save_file
from text.builders import byte_level
from tokenizers import processors

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}
CLASSES = {"0": "calm", "1": "busy", "2": "full"}


def write_embedder(
    folder: Path, pooling: str = "mean", prompts: dict[str, str] | None = None, length: int = 96
) -> Path:
    """As sentence-transformers saves one whose vectors have length 1."""
    _write(folder, CONFIG)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {name: False for name in ("pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens")}
    modes |= {f"pooling_mode_{'mean_tokens' if pooling == 'mean' else 'cls_token'}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length, "do_lower_case": False}))
    settings = {"prompts": prompts or {}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def write_reranker(folder: Path) -> Path:
    """One label: how well the second text of a pair answers the first."""
    return _write(folder, {**CONFIG, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}})


def write_classifier(folder: Path) -> Path:
    return _write(folder, {**CONFIG, "architectures": ["BertForSequenceClassification"], "id2label": CLASSES})


def _write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend = byte_level()
    begin, end = (backend.token_to_id(name) for name in ("<|begin|>", "<|end|>"))
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A <|end|>",
        pair="<|begin|> $A <|end|> $B:1 <|end|>:1",
        special_tokens=[("<|begin|>", begin), ("<|end|>", end)],
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>"}))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(asked_for(config), folder / "model.safetensors")
    return folder
