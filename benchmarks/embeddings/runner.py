"""A runner: a process of one engine that computes vectors on demand, and reports how long that took.

Each engine's own file makes what computes. Padded engines get batches of up to `BATCH` texts: of all at once sorted by
length, as sentence-transformers does it; of those that come in time the one that waits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.embeddings.texts import TAILS, texts

BATCH = 32


@dataclass(frozen=True)
class Job:
    """model: a folder of transformers. precision: float32 or bfloat16. quantization: of this engine's matrices."""

    model: str
    precision: str
    threads: int
    tail: str
    count: int
    vocabulary: int
    seed: int
    quantization: str = "none"


class Engine(Protocol):
    name: str

    def all(self, given: list[np.ndarray]) -> list[np.ndarray]:
        """A vector of length 1 for each text, as fast as it can."""

    def online(self, given: list[np.ndarray], due: np.ndarray) -> list[float]:
        """Seconds from each text's coming to its vector."""


def serve(make: Callable[[Job], Engine]) -> None:
    """argv: the job. Commands are lines: {"do": "all" | "online" | "vectors", …}."""
    job = Job(**json.loads(sys.argv[1]))
    given = texts(job.count, TAILS[job.tail], job.vocabulary, job.seed)
    engine = make(job)
    engine.all(given[: 2 * BATCH])
    _say({"ready": engine.name})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "online":
            due = np.array(command["due"])
            _say({"latencies": engine.online(given[: len(due)], due)})
            continue
        began = time.perf_counter()
        found = engine.all(given)
        seconds = time.perf_counter() - began
        if command["do"] == "vectors":
            np.save(Path(command["path"]), np.stack(found))
        _say({"seconds": seconds})


class Padded:
    """An engine that computes batches of equal lengths. compute: ids and mask int64[B, T] → float32[B, N]."""

    def __init__(self, name: str, compute: Callable[[np.ndarray, np.ndarray], np.ndarray]):
        self.name, self._compute = name, compute

    def all(self, given: list[np.ndarray]) -> list[np.ndarray]:
        order = sorted(range(len(given)), key=lambda index: -len(given[index]))
        found: list[Any] = [None] * len(given)
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            for index, vector in zip(batch, self._batch([given[one] for one in batch]), strict=True):
                found[index] = vector
        return found

    def online(self, given: list[np.ndarray], due: np.ndarray) -> list[float]:
        began, latencies = time.perf_counter(), [0.0] * len(given)
        for batch in waiting(due, began):
            self._batch([given[one] for one in batch])
            done = time.perf_counter() - began
            for one in batch:
                latencies[one] = done - due[one]
        return latencies

    def _batch(self, batch: list[np.ndarray]) -> np.ndarray:
        longest = max(map(len, batch))
        ids, mask = np.zeros((len(batch), longest), np.int64), np.zeros((len(batch), longest), np.int64)
        for row, text in enumerate(batch):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        return self._compute(ids, mask)


def waiting(due: np.ndarray, began: float) -> Iterator[list[int]]:
    """Yield the texts that wait, up to BATCH at a time; where none waits, sleep until the next is due."""
    first = 0
    while first < len(due):
        now = time.perf_counter() - began
        past = int(np.searchsorted(due, now, side="right"))
        if past <= first:
            time.sleep(max(0.0, due[first] - now))
            continue
        end = min(past, first + BATCH)
        yield list(range(first, end))
        first = end


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)
