"""Measure what suffix drafting costs: reading a prompt, learning an answer, drafting for rows with long histories; its
memory.

64 rows, each with 32,768 tokens of a text of its own, draft in turn as in steps of an engine: each has got the token
that its text goes on with, and asks for 16 drafts, with answers of the same salt beside its own tokens. Texts are this
repository's pages and sources, cut into words and signs, and some that an index may find hard: tokens drawn at random,
of which hardly one comes again, two in random order, and one for ever. Times are CPU time of the thread, with all that
is done in Python.

For the repository's texts also how good drafts are, where each is taken from its 20th token on as it stands, alone and
with those before it as answers: tokens a step with at most 8 drafts, and, of the drafts that were given about a certain
chance, how many were right.

    python -m benchmarks.suffix_index [--rows 64] [--history 32768] [--write]
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from inflight.core.sequence import Sequence as Decode
from inflight.core.sequence import SequenceView
from inflight.core.stopping import StopChecker
from inflight.core.types.request import Request
from inflight.execution.drafters.suffix import MAX_READ, SuffixDrafter, SuffixIndex, best_kind

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
ANSWER = 1_000  # tokens
ANSWERS = 500
ROUNDS = 100
MAX_DRAFTS = 16  # drafts that a row asks for
MAX_BYTES = 256 << 20  # more than usual: all rows have their tokens, and no answer is forgotten for them
START, DRAFTS = 20, 8  # of texts that are gone through
TEXTS = 7  # of so many one is
VOCABULARY = 150_000
UNBOUNDED = 10**9  # output tokens


class Costs(NamedTuple):
    """draft, slowest: microseconds for a row, in the median and the slowest of the rounds through all. drafts: of a
    row, on average. read, learn, forget: nanoseconds a token."""

    draft: float
    slowest: float
    drafts: float
    read: float
    learn: float
    forget: float
    bytes_per_token: float


def repository() -> list[list[int]]:
    """Each page and source as numbers of its words, signs and indentations."""
    paths = sorted(path for kind in ("docs/*.md", "src/**/*.py", "tests/**/*.py") for path in ROOT.glob(kind))
    numbers: dict[str, int] = {}
    return [
        [numbers.setdefault(word, len(numbers)) for word in re.findall(r"\n *| ?\w+| ?[^\w\s]", path.read_text())]
        for path in paths
    ]


class Watched:
    """A kind of index that remembers those that were made of it."""

    def __init__(self) -> None:
        self._kind = best_kind()
        self.bytes_alone, self.bytes_per_token = self._kind.bytes_alone, self._kind.bytes_per_token
        self.made: list[SuffixIndex] = []

    def __call__(self) -> SuffixIndex:
        self.made.append(self._kind())
        return self.made[-1]

    @property
    def bytes_of_a_token(self) -> float:
        return sum(index.nbytes for index in self.made) / sum(len(index) for index in self.made)


def decode(number: int, prompt: Iterable[int], output: Iterable[int] = ()) -> Decode:
    request = Request(request_id=str(number), prompt_token_ids=tuple(prompt))
    sequence = Decode(number, request, 0, StopChecker(request, frozenset(), UNBOUNDED, None), UNBOUNDED, ())
    sequence.output += output
    return sequence


def seconds_for(work: Callable[[T], object], items: Iterable[T]) -> float:
    """Return the CPU seconds of the work on all items, one after the other."""
    started = time.thread_time()
    for item in items:
        work(item)
    return time.thread_time() - started


def costs(text: Sequence[int], rows: int, history: int) -> Costs:
    """text: the rows' prompts, what they go on with, and the answers are parts of it, from its beginning again where it
    ends."""

    def part(start: int, count: int) -> list[int]:
        return [text[place % len(text)] for place in range(start, start + count)]

    watched, stride = Watched(), history + ROUNDS
    drafter = SuffixDrafter(MAX_BYTES, watched)
    answers = [SequenceView(decode(rows + n, (0,), part(rows * stride + n * ANSWER, ANSWER))) for n in range(ANSWERS)]
    asking = SequenceView(decode(rows + ANSWERS, (0,)))

    def learned(view: SequenceView) -> None:
        drafter.finished(view)
        drafter.propose(asking, 0)  # until then it waits

    learn = seconds_for(learned, answers)
    drafter.finished(asking)

    running = [decode(row, part(row * stride, history)) for row in range(rows)]
    views = [SequenceView(sequence) for sequence in running]
    calls = -(-history // MAX_READ)
    read = seconds_for(lambda view: drafter.propose(view, 0), views * calls)

    steps, drafted = [], 0
    for place in range(ROUNDS):
        for row, sequence in enumerate(running):
            sequence.output.append(text[(row * stride + history + place) % len(text)])
        started = time.thread_time()
        proposed = [drafter.propose(SequenceView(sequence), MAX_DRAFTS) for sequence in running]
        steps.append((time.thread_time() - started) / rows)
        drafted += sum(len(one.token_ids) for one in proposed)

    nbytes, shared = watched.bytes_of_a_token, watched.made[0]
    forget = seconds_for(lambda _: shared.drop_text(), range(ANSWERS))
    return Costs(
        draft=1e6 * statistics.median(steps),
        slowest=1e6 * max(steps),
        drafts=drafted / (ROUNDS * rows),
        read=1e9 * read / (rows * history),
        learn=1e9 * learn / (ANSWERS * ANSWER),
        forget=1e9 * forget / (ANSWERS * ANSWER),
        bytes_per_token=nbytes,
    )


class Quality(NamedTuple):
    """right: of the drafts whose chance was in each tenth, (sum of the chances, those that were right, all)."""

    tokens_per_step: float
    right: list[tuple[float, int, int]]


def quality(texts: Iterable[Sequence[int]], remembers: bool) -> Quality:
    """Each text is gone through as if a model wrote it; drafts count up to the first that is wrong."""
    drafter, steps, tokens = SuffixDrafter(), 0, 0
    tenths = [(0.0, 0, 0)] * 10
    for number, text in enumerate(texts):
        sequence = decode(number, text[:START])
        view = SequenceView(sequence)
        while (place := START + len(sequence.output)) < len(text):
            token_ids, chances = drafter.propose(view, min(DRAFTS, len(text) - place - 1))
            right = 0
            for token_id, chance in zip(token_ids, chances, strict=True):
                is_right = token_id == text[place + right]
                total, times, of = tenths[min(9, int(10 * chance))]
                tenths[min(9, int(10 * chance))] = total + chance, times + is_right, of + 1
                if not is_right:
                    break
                right += 1
            sequence.output += text[place : place + right + 1]
            steps, tokens = steps + 1, tokens + right + 1
        if remembers:
            drafter.finished(view)
    return Quality(tokens / steps, tenths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--history", type=int, default=32_768, help="tokens of each row")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    texts, drawn = repository(), random.Random(1)
    tokens = arguments.rows * (arguments.history + ROUNDS) + ANSWERS * ANSWER
    scenes: dict[str, Sequence[int]] = {
        "this repository": [*chain.from_iterable(texts)],
        "tokens at random": drawn.choices(range(VOCABULARY), k=tokens),
        "two tokens at random": drawn.choices(range(2), k=tokens),
        "one token": [7],
    }
    found = {}
    for name, text in scenes.items():
        found[name] = costs(text, arguments.rows, arguments.history)
        log_line(f"{name}: {found[name]}")
    kinds = {"alone": quality(texts[::TEXTS], remembers=False), "with answers": quality(texts[::TEXTS], remembers=True)}
    section = report(arguments.rows, arguments.history, found, kinds)
    publish("suffix_index", "What suffix drafting costs", section, arguments.write)


def report(rows: int, history: int, found: Mapping[str, Costs], kinds: Mapping[str, Quality]) -> str:
    head = ["text", "µs to draft for a row", "slowest round", "drafts", "ns to read a token", "to learn", "to forget"]
    cells = [
        [name, *(f"{value:,.1f}" for value in one[:3]), *(f"{value:,.0f}" for value in one[3:])]
        for name, one in found.items()
    ]
    right = [
        [f"{place / 10} to {place / 10 + 0.1:.1f}", *(_share(one.right[place]) for one in kinds.values())]
        for place in range(10)
    ]
    speeds = ", ".join(f"{one.tokens_per_step:.2f} {name}" for name, one in kinds.items())
    return "\n\n".join(
        [
            f"{rows} rows with {history:,} tokens each, beside {ANSWERS} answers of {ANSWER:,}; at most {MAX_DRAFTS} "
            "drafts. CPU time, with Python's part; rounds go through all rows.",
            table([*head, "bytes a token"], cells),
            f"Tokens a step, going through the repository's texts with at most {DRAFTS} drafts: {speeds}. Of the "
            "drafts with a chance in each tenth, those that were right, and what their chances were on average:",
            table(["chance", *kinds], right),
        ]
    )


def _share(tenth: tuple[float, int, int]) -> str:
    total, right, of = tenth
    return f"{right / of:.2f} of {of:,}, {total / of:.2f} said" if of else "none"


if __name__ == "__main__":
    main()
