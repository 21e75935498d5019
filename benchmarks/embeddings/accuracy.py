"""Vectors beside those of transformers in float32: how far this engine's are from them in each way to hold a model.

One model of each kind, of a published shape, with random weights; texts of lognormal lengths, their tokens as ids. Of
random weights every number counts alike, and trained ones are surer of what they say.

    python -m benchmarks.embeddings.accuracy --write
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison import log_line
from benchmarks.embeddings.export import SHAPES, write_modules
from benchmarks.embeddings.run_inflight import Inflight
from benchmarks.embeddings.runner import Job
from benchmarks.embeddings.texts import TAILS, texts
from benchmarks.peers.tokenizer import write_tokenizer
from benchmarks.results import table, write_section
from benchmarks.shapes import QWEN3_06B
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads

VOCABULARY, SEED = 30_522, 11
WAYS = (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8"), ("bfloat16", "int4"))


@dataclass(frozen=True)
class Shape:
    """config: a class of transformers and its fields. pooling: as sentence-transformers calls it."""

    name: str
    config: str
    fields: dict[str, Any]
    pooling: str = "mean_tokens"


_OTHERS = ("model_type", "torch_dtype", "vocab_size")
_QWEN3 = {name: value for name, value in QWEN3_06B.items() if name not in _OTHERS}
KINDS = (
    Shape("BERT, MiniLM-L6", "BertConfig", SHAPES["minilm-l6"]),
    Shape("BERT, bge-base", "BertConfig", SHAPES["bge-base"], "cls_token"),
    Shape("XLM-RoBERTa, base", "XLMRobertaConfig", {**SHAPES["bge-base"], "max_position_embeddings": 514}),
    Shape("MPNet, base", "MPNetConfig", {**SHAPES["bge-base"], "max_position_embeddings": 514}),
    Shape("ModernBERT, base", "ModernBertConfig", {"vocab_size": 50_368}, "cls_token"),
    Shape("Qwen3-Embedding-0.6B", "Qwen3Config", _QWEN3, "lasttoken"),
)


_POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean_tokens": lambda hidden: hidden.mean(0),
    "cls_token": lambda hidden: hidden[0],
    "lasttoken": lambda hidden: hidden[-1],
}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64, help="texts (default 64)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args(given)
    body = _report([_line(shape, arguments.count) for shape in KINDS], arguments.count)
    print(body)
    if arguments.write:
        words = [one for one in (sys.argv[1:] if given is None else given) if one != "--write"]
        command = " ".join(["python -m benchmarks.embeddings.accuracy", *words])
        write_section("embeddings accuracy", "Vectors beside transformers' in float32", command, body)


def _line(shape: Shape, count: int) -> list[str]:
    asked = texts(count, TAILS["usual"], VOCABULARY, SEED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        oracle = _oracle(folder, shape, asked)
        found = []
        for precision, quantization in WAYS:
            vectors = _vectors(str(folder), precision, quantization, asked)
            cosines = (vectors * oracle).sum(1)
            found.append(f"{cosines.min():.6f} ({np.median(cosines):.6f})")
            log_line(f"{shape.name}, {precision} {quantization}: {found[-1]}")
    return [shape.name, *found]


def _oracle(folder: Path, shape: Shape, asked: Sequence[np.ndarray]) -> np.ndarray:
    """Writes the model; float64[texts, width], of length 1, each text computed alone."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, shape.config)(**{"vocab_size": VOCABULARY, **shape.fields})
    model = transformers.AutoModel.from_config(config).eval().float()
    model.save_pretrained(folder)
    write_modules(folder, config.hidden_size, shape.pooling)
    write_tokenizer(folder, config.vocab_size)
    found = []
    with torch.inference_mode():
        for text in asked:
            hidden = model(torch.from_numpy(text)[None]).last_hidden_state[0].double().numpy()
            found.append(_POOLED[shape.pooling](hidden))
    return _unit(np.stack(found))


def _vectors(folder: str, precision: str, quantization: str, asked: list[np.ndarray]) -> np.ndarray:
    threads = int(resolve_threads(EngineSettings()).value)
    engine = Inflight(Job(folder, precision, threads, "usual", len(asked), VOCABULARY, SEED, quantization))
    vectors = np.stack(engine.all(asked)).astype(np.float64)
    engine.close()
    return _unit(vectors)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _report(lines: Sequence[Sequence[str]], count: int) -> str:
    lengths = TAILS["usual"]
    about = (
        f"{count} texts of lognormal lengths (median {lengths.median:g}, up to {lengths.longest} tokens), random "
        "weights. Cosines with the vectors that transformers computes in float32: the least (the median). At least "
        "0.99999 is asked in float32."
    )
    head = ["model", "float32", "bfloat16", "int8", "int4"]
    return f"{about}\n\n{table(head, lines)}"


if __name__ == "__main__":
    main()
