"""Texts that models are asked about: passages written for this purpose, and long ones from this project's manual."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from inflight.text import Tokenizer

_HERE = Path(__file__).parent
_MANUAL = ("kernels.md", "engine-internals.md", "serving-internals.md", "scaling.md")
LONG, LONG_TEXTS = 2100, 4  # tokens: past the window of 512 positions that most layers of Gemma 3 270M see


def passages(tokenizer: Tokenizer) -> list[np.ndarray]:
    """Return the token ids of each passage: English, code and seven other languages."""
    parts = re.split(r"^=== .*\n", (_HERE / "passages.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [_ids(tokenizer, part.strip()) for part in parts]


def long_texts(tokenizer: Tokenizer, limit: int = LONG) -> list[np.ndarray]:
    """Return the first `limit` tokens of each of four pages of the manual, 8,400 in all."""
    folder = _HERE.parents[1] / "docs"
    return [_ids(tokenizer, (folder / name).read_text(encoding="utf-8"))[:limit] for name in _MANUAL]


def _ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return np.array(tokenizer.encode(text), np.int32)
