"""A model of a shape with random weights, as a folder of transformers and sentence-transformers, and as a graph of
ONNX: `python -m benchmarks.embeddings.export FOLDER SHAPE`. Runs in an environment that has torch, transformers and
onnx.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "minilm-l6": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "bge-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}
VOCABULARY = 30_522


def write(folder: Path, shape: str) -> None:
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=512, **SHAPES[shape])
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_modules(folder, config.hidden_size)

    class Vectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            hidden = self.model(ids, attention_mask=mask).last_hidden_state
            shares = mask[..., None].to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * shares).sum(1) / shares.sum(1), dim=1)

    example = torch.ones(2, 16, dtype=torch.int64)
    batch, tokens = torch.export.Dim("batch", min=1, max=256), torch.export.Dim("tokens", min=2, max=512)
    torch.onnx.export(
        Vectors().eval(),
        (example, example.clone()),
        str(folder / "model.onnx"),
        input_names=["ids", "mask"],
        output_names=["vectors"],
        dynamic_shapes=({0: batch, 1: tokens}, {0: batch, 1: tokens}),
        dynamo=True,
        external_data=False,
    )


def write_modules(folder: Path, width: int, pooling: str = "mean_tokens") -> None:
    """Return what sentence-transformers does with hidden states. pooling: as its files call it."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooled = {"word_embedding_dimension": width, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooled))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512}))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
