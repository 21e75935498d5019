"""Share between the runners: an engine is fed token ids as they fall due, stepped, and each token stamped.

A runner is a process of one engine, in that engine's own environment: this module needs the standard library alone and
knows no metrics. The protocol is JSON lines: in comes the job (what to load and how), then one list of requests after
another; out goes one line when the engine is loaded, then one for each list, with the times of all tokens. Times are
seconds of the system's monotonic clock, so that the process that asks can set them beside its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

# inflight's own setting at a precision; at the others it holds what its copy does.
QUANTIZATION: Mapping[str, Literal["int8", "int8-all", "int4"]] = {
    "int8": "int8",
    "int8-all": "int8-all",
    "int4": "int4",
}


@dataclass(frozen=True, slots=True)
class Job:
    """Record what to load: a folder or file, and which precision it is compared at (`engines.PRECISIONS`).

    max_num_seqs: rows. row_tokens: the most that a request has, prompt and output, for engines that give each row
    memory of its own. kv_gib: memory for keys and values, for those that share it out. settings: further ones, which
    only inflight's own runner takes.
    """

    model: str
    precision: str
    threads: int
    max_num_seqs: int
    row_tokens: int
    max_model_len: int
    kv_gib: int
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """One request: when it is due, seconds after the start of its list; its prompt; how many tokens it gets."""

    arrival: float
    prompt: list[int]
    output_tokens: int


class Engine(Protocol):
    """version, settings: said in the report."""

    version: str
    settings: str

    def add(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """Greedy, without an end token, without a prefix cache. Numbers never come again."""

    def step(self) -> Iterable[tuple[int, int]]:
        """Which requests got how many tokens."""


def serve(load: Callable[[Job], Engine]) -> None:
    """Answers on standard output, until standard input ends; whatever the engine prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    engine = load(Job(**json.loads(sys.stdin.readline())))
    answer({"version": engine.version, "settings": engine.settings})
    numbered = 0
    for line in sys.stdin:
        works = [Work(*one) for one in json.loads(line)]
        answer(run(engine, works, numbered))
        numbered += len(works)


def run(engine: Engine, works: list[Work], numbered: int = 0) -> dict[str, Any]:
    """Times of each request's tokens in their order, and of the start. Requests are numbered from `numbered` on."""
    times: list[list[float]] = [[] for _ in works]
    due = deque(sorted(range(len(works)), key=lambda index: works[index].arrival))
    unfinished = 0
    start = time.monotonic()
    while due or unfinished:
        now = time.monotonic() - start
        while due and works[due[0]].arrival <= now:
            index = due.popleft()
            engine.add(numbered + index, works[index].prompt, works[index].output_tokens)
            unfinished += 1
        if not unfinished:
            time.sleep(works[due[0]].arrival - now)
            continue
        progress = list(engine.step())
        now = time.monotonic()
        for number, tokens in progress:
            index = number - numbered
            times[index] += [now] * tokens
            unfinished -= len(times[index]) == works[index].output_tokens
    return {"start": start, "times": times}
