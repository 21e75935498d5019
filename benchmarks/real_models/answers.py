"""Questions to an engine and its answers: log-probabilities at each position of given texts, in a file.

Uses numpy alone, so that runners in other environments can import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LIKELIEST = 1024  # tokens of the reference's distribution that are compared one by one


@dataclass(frozen=True, slots=True)
class Answers:
    """An engine's distributions at P positions, each after all tokens of its text before it.

    Attributes:
        log_probs: float32[P, K], of the tokens that were asked for, in nats.
        best: int32[P], the likeliest token.
        of_next: float32[P], log-probability of the token that follows in the text.
        about: version and settings of the engine, in one line.
    """

    log_probs: np.ndarray
    best: np.ndarray
    of_next: np.ndarray
    about: str = ""

    def save(self, path: Path) -> None:
        np.savez(path, log_probs=self.log_probs, best=self.best, of_next=self.of_next, about=np.array(self.about))

    @classmethod
    def load(cls, path: Path) -> Answers:
        with np.load(path) as file:
            return cls(file["log_probs"], file["best"], file["of_next"], str(file["about"]))


@dataclass(frozen=True, slots=True)
class Questions:
    """Texts as token ids, and the tokens whose log-probabilities are asked for.

    Attributes:
        texts: int32 token ids of each; every token but the first of a text is a position.
        asked: int32[P, K], the reference's likeliest tokens, the likeliest first; None: an engine chooses its own.
    """

    texts: list[np.ndarray]
    asked: np.ndarray | None = None

    def save(self, path: Path) -> None:
        lengths = np.array([len(text) for text in self.texts])
        np.savez(path, ids=np.concatenate(self.texts), lengths=lengths, asked=self._asked_or_empty())

    @classmethod
    def load(cls, path: Path) -> Questions:
        with np.load(path) as file:
            texts = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
            return cls(texts, file["asked"] if len(file["asked"]) else None)

    def _asked_or_empty(self) -> np.ndarray:
        return np.zeros((0, LIKELIEST), np.int32) if self.asked is None else self.asked


class Collected:
    """Answers as they come, some rows of logits at a time, in the order of positions."""

    def __init__(self, questions: Questions):
        self._asked = questions.asked
        self._next = np.concatenate([text[1:] for text in questions.texts])
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._chosen: list[np.ndarray] = []
        self._position = 0

    def take(self, logits: np.ndarray) -> None:
        """Reduce logits float32[R, V] of the next R positions."""
        at = slice(self._position, self._position + len(logits))
        self._position = at.stop
        if self._asked is None:
            self._chosen.append(_likeliest(logits))
            asked = self._chosen[-1]
        else:
            asked = self._asked[at]
        highest = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - highest, dtype=np.float32).sum(axis=1, keepdims=True, dtype=np.float64))
        normal = (highest + total).astype(np.float32)
        of_asked = np.take_along_axis(logits, asked, axis=1) - normal
        of_next = np.take_along_axis(logits, self._next[at, None], axis=1) - normal
        self._parts.append((of_asked, logits.argmax(axis=1).astype(np.int32), of_next[:, 0]))

    def answers(self, about: str = "") -> Answers:
        if self._position != len(self._next):
            raise ValueError(f"{self._position} of {len(self._next)} positions were answered")
        log_probs, best, of_next = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return Answers(log_probs, best, of_next, about)

    def chosen(self) -> np.ndarray:
        """Return the likeliest tokens, where none were asked for: int32[P, K]."""
        return np.concatenate(self._chosen)


def _likeliest(logits: np.ndarray) -> np.ndarray:
    count = min(LIKELIEST, logits.shape[1])
    found = np.argpartition(logits, -count, axis=1)[:, -count:]
    order = np.argsort(-np.take_along_axis(logits, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1).astype(np.int32)


def slabs(text: Sequence[int] | np.ndarray, size: int) -> Iterator[range]:
    """Yield the indices of a text's tokens, `size` at a time."""
    for start in range(0, len(text), size):
        yield range(start, min(start + size, len(text)))
