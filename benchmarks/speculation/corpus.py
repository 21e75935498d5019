"""The corpus: pairs of a prompt and its answer, fixed before anything was tuned; half of them for nothing but the final
figures.

`python -m benchmarks.speculation.corpus` makes the files anew, the same ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.speculation import texts
from inflight.build import BUILT_IN
from inflight.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "corpus"
Kind = Literal["repeating", "different"]
Part = Literal["tuning", "held-out"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of the built-in model's vocabulary. name: "edit-03"; odd numbers are held out of all tuning."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def part(self) -> Part:
        return "held-out" if int(self.name.rpartition("-")[2]) % 2 else "tuning"


def read(kind: Kind, part: Part | None = None) -> list[Pair]:
    """In an order that mixes what the texts are about, always the same. part: those of it; None: all."""
    tokenizer = Tokenizer.load(BUILT_IN)

    def ids(text: str | list[int]) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text) if isinstance(text, str) else text)

    entries = [json.loads(line) for line in (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [Pair(one["name"], ids(one["prompt"]), ids(one["answer"])) for one in entries]
    random.Random(kind).shuffle(pairs)
    return [one for one in pairs if part in (None, one.part)]


def lines(kind: Kind) -> Iterator[str]:
    """Yield the lines of a file as they are made."""
    written = texts.written()
    for topic, number in texts.REPEATING if kind == "repeating" else texts.DIFFERENT:
        for index in range(number):
            name = f"{topic}-{index:02}"
            rng = random.Random(name)
            prompt: str | list[int]
            answer: str | list[int]
            if topic == "written":
                prompt, answer = next(written)
            elif topic == "tokens":
                prompt, answer = texts.tokens(rng, range(5, 2048))
            else:
                prompt, answer = getattr(texts, topic)(rng)
            yield json.dumps({"name": name, "prompt": prompt, "answer": answer})


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for kind in get_args(Kind):
        (FOLDER / f"{kind}.jsonl").write_text("\n".join(lines(kind)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
