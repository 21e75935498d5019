"""Texts that models are asked about: passages written for this purpose, and long ones from this project's manual."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from inflight.text import Tokenizer

_HERE = Path(__file__).parent
_MANUAL = ("kernels.md", "engine-internals.md", "serving-internals.md", "scaling.md")
LONG = 2100  # tokens: past the window of 512 positions that most layers of Gemma 3 270M see
_CODE = "code"
_SENTENCE = re.compile(r"(?<=[.!?。”»])\s+|(?<=。)")


def passages(tokenizer: Tokenizer) -> list[np.ndarray]:
    """Return the token ids of each passage: English, code and seven other languages."""
    return [_ids(tokenizer, text) for _, text in _titled()]


def long_texts(tokenizer: Tokenizer, limit: int = LONG) -> list[np.ndarray]:
    """Return the first `limit` tokens of each of four pages of the manual, 8,400 in all."""
    return [_ids(tokenizer, _page(name))[:limit] for name in _MANUAL]


def sentences(count: int) -> list[str]:
    """Return so many sentences, of the passages in human languages, then of the manual, of 20 characters or more."""
    prose = [text for title, text in _titled() if not title.startswith(_CODE)]
    prose += [line for name in _MANUAL for line in re.split(r"\n\n+", _page(name)) if line[:1].isalpha()]
    found = (re.sub(r"\s+", " ", one).strip() for text in prose for one in _SENTENCE.split(text))
    return list(dict.fromkeys(one for one in found if len(one) >= 20))[:count]


def _titled() -> list[tuple[str, str]]:
    parts = re.split(r"^=== (.*)\n", (_HERE / "passages.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [(title, text.strip()) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def _page(name: str) -> str:
    return (_HERE.parents[1] / "docs" / name).read_text(encoding="utf-8")


def _ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return np.array(tokenizer.encode(text), np.int32)
