"""Vectors of sentences by all-MiniLM-L6-v2 in each precision, beside those of transformers in float32."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison import log_line
from benchmarks.results import table
from inflight import LLM

MODEL, TOP = "all-minilm-l6-v2", 5
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "`--dtype float32`": {"dtype": "float32"},
    "as served (bf16)": {},
    "`--quantization int8`": {"quantization": "int8"},
    "`--quantization int4`": {"quantization": "int4"},
}


@dataclass(frozen=True, slots=True)
class Closeness:
    """Compare vectors with the reference's, both of length 1.

    Attributes:
        cosine_mean, cosine_min: of each sentence's two vectors.
        same_nearest: share of sentences whose nearest other sentence is the same one.
        overlap: share of the five nearest that are among the reference's five.
        similarity_error: largest difference between two similarities of the same pair.
    """

    cosine_mean: float
    cosine_min: float
    same_nearest: float
    overlap: float
    similarity_error: float


def reference_vectors(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Return float32[N, D] of length 1: the last hidden states of each text alone, their mean."""
    import torch
    from transformers import BertModel, BertTokenizerFast

    tokenizer, model = BertTokenizerFast.from_pretrained(folder), BertModel.from_pretrained(folder).eval().float()
    found = []
    with torch.inference_mode():
        for text in texts:
            batch = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
            found.append(model(**batch).last_hidden_state[0].mean(0).numpy())
    vectors = np.stack(found)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def vectors(folder: Path, texts: Sequence[str], settings: Mapping[str, Any]) -> np.ndarray:
    """Return float32[N, D] as this engine serves them."""
    with LLM(str(folder), **settings) as llm:
        found = llm.embed(list(texts), truncate=True)
    return np.array([one.outputs.embedding for one in found], np.float32)


def closeness(reference: np.ndarray, found: np.ndarray) -> Closeness:
    """Compare vectors of the same texts."""
    cosines = (reference * found).sum(axis=1)
    exact, near = _similarities(reference), _similarities(found)
    expected, nearest = _nearest(exact), _nearest(near)
    shared = [len(set(a) & set(b)) / TOP for a, b in zip(expected.tolist(), nearest.tolist(), strict=True)]
    return Closeness(
        float(cosines.mean()),
        float(cosines.min()),
        float((expected[:, 0] == nearest[:, 0]).mean()),
        float(np.mean(shared)),
        float(np.abs(exact - near).max()),
    )


def report(folder: Path, texts: Sequence[str], isas: Sequence[str]) -> str:
    """Return the table of precisions on each instruction set."""
    reference = reference_vectors(folder, texts)
    lines = []
    for isa in isas:
        for name, settings in PRECISIONS.items():
            log_line(f"{MODEL}: {name}, {isa}")
            with _instructions(isa):
                one = closeness(reference, vectors(folder, texts, settings))
            shares = [f"{one.same_nearest:.1%}", f"{one.overlap:.1%}", f"{one.similarity_error:.4f}"]
            lines.append([name, isa, f"{one.cosine_mean:.6f}", f"{one.cosine_min:.6f}", *shares])
    head = ["held as", "instructions", "cosine mean", "min", "nearest the same", "top-5 overlap"]
    return table([*head, "largest error of a similarity"], lines)


@contextmanager
def _instructions(isa: str) -> Iterator[None]:
    """Have models that are loaded meanwhile computed by one instruction set."""
    before = os.environ.get("INFLIGHT_ISA")
    os.environ["INFLIGHT_ISA"] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ["INFLIGHT_ISA"]
        else:
            os.environ["INFLIGHT_ISA"] = before


def _similarities(unit: np.ndarray) -> np.ndarray:
    found = unit @ unit.T
    np.fill_diagonal(found, -2)  # a sentence is not its own neighbour
    return np.asarray(found)


def _nearest(similarities: np.ndarray) -> np.ndarray:
    return np.argsort(-similarities, axis=1, kind="stable")[:, :TOP]
