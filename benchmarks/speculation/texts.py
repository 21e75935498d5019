"""Work that repeats itself, and work that does not, made by a seed: prompts and the answers that belong to them.

Repeating: a file that is given back with an edit, passages that are quoted, lines that become records of JSON. Not
repeating: prose of a grammar, prose that was written (the data of the built-in model), tokens at random. The answers
are written, as a good model would say them; no model is asked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from benchmarks.speculation.prose import sentence, words

_WRITTEN = Path(__file__).parents[2] / "builtin" / "data"
_VERBS = words("load merge count split check store shift drop pack sort find close send scale trim")
_OBJECTS = words("order invoice ticket route sensor vessel parcel ledger member batch reading lease signal crate")
_FIELDS = words("price weight owner status region colour length rating source volume")
_TOWNS = words("Aldby Brantham Corvale Dunmere Eskdale Farrow Glenholt Harwick Inverlea Jorsand Kelby Lowmoor")
_NAMES = words("Ada Bruno Celia Dmitri Esther Farid Greta Hugo Irene Jonas Katya Liam Mona Nils Olga Pavel")

Text = tuple[str, str]  # prompt, answer


# -- repeating ------------------------------------------------------------------------------------------------------
def edit(rng: random.Random) -> Text:
    """A file in the prompt, and the file with an edit as the answer."""
    things = rng.sample(_OBJECTS, 4)
    file = "\n\n\n".join(_function(rng, verb, thing) for verb, thing in zip(rng.sample(_VERBS, 4), things, strict=True))
    old = rng.choice(things)
    new = rng.choice([one for one in _OBJECTS if one not in things])
    wanted = (
        (f"Call every {old} a {new}.", file.replace(old, new)),
        ("Raise KeyError in the place of ValueError.", file.replace("ValueError", "KeyError")),
        (f"Add a function that counts {new}s.", f"{file}\n\n\n{_function(rng, 'count', new)}"),
        (
            "Make the limit of each loop a parameter.",
            file.replace("(items", "(limit, items").replace("< 10", "< limit"),
        ),
    )
    asked, edited = rng.choice(wanted)
    return f"{asked} Give me the whole file.\n\n{file}\n", f"Here it is.\n\n{edited}\n"


def _function(rng: random.Random, verb: str, thing: str) -> str:
    field, other = rng.sample(_FIELDS, 2)
    number = rng.randrange(2, 90)
    bodies = (
        f"    found = []\n    for {thing} in items:\n        if {thing}.{field} < 10:\n"
        f"            found.append({thing}.{other} + {number})\n    return found",
        f"    total = {number}\n    for {thing} in items:\n        total += {thing}.{field} * {thing}.{other}\n"
        f"    return total",
        f"    if not items:\n        raise ValueError('no {thing} has a {field}')\n"
        f"    return max(items, key=lambda {thing}: {thing}.{field})",
        f"    by_{field} = {{}}\n    for {thing} in items:\n"
        f"        by_{field}.setdefault({thing}.{field}, []).append({thing}.{other})\n    return by_{field}",
    )
    return f"def {verb}_{thing}(items):\n{rng.choice(bodies)}"


def quote(rng: random.Random) -> Text:
    """Passages in the prompt, and quotes in the answer."""
    passages = [" ".join(sentence(rng) for _ in range(2)) for _ in range(5)]
    listed = "\n".join(f"[{number}] {passage}" for number, passage in enumerate(passages, 1))
    first, second, third = rng.sample(range(5), 3)
    answer = (
        f'Passage {first + 1} says: "{passages[first]}" {sentence(rng)}\nThen there is passage {second + 1}: '
        f'"{passages[second]}"\n{sentence(rng)} As [{third + 1}] has it, "{passages[third]}"\n'
    )
    return f"{listed}\n\nWhat do these passages tell of the {rng.choice(_FIELDS)}? Quote them.\n", answer


def records(rng: random.Random) -> Text:
    """Lines of a list in the prompt, and JSON in the answer."""
    keys = rng.sample(_FIELDS, 3)
    entries = [
        {
            "name": f"{rng.choice(_NAMES)} {rng.choice(_TOWNS)}",
            "town": rng.choice(_TOWNS),
            **{key: rng.randrange(1000) for key in keys},
        }
        for _ in range(8)
    ]
    lines = "\n".join("; ".join(str(value) for value in entry.values()) for entry in entries)
    answer = "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n]\n"
    return f"Name; town; {'; '.join(keys)}. Make JSON of it, an object for each line.\n\n{lines}\n", answer


# -- not repeating ---------------------------------------------------------------------------------------------------
def prose(rng: random.Random) -> Text:
    """Sentences of a grammar, which go on in the answer."""
    return " ".join(sentence(rng) for _ in range(10)), " ".join(sentence(rng) for _ in range(rng.randint(9, 12)))


def written() -> Iterator[Text]:
    """Answers that people wrote, each in one text alone: some for the prompt, the next ones for the answer."""
    lines = [line for path in sorted(_WRITTEN.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    answers = [one for one in (json.loads(line)["answer"] for line in lines) if len(one) > 150]
    random.Random("written").shuffle(answers)
    for start in count(0, 9):
        yield "\n".join(answers[start : start + 3]), "\n".join(answers[start + 3 : start + 9])


def tokens(rng: random.Random, vocabulary: range) -> tuple[list[int], list[int]]:
    """Token ids at random; prompt, answer."""
    return rng.choices(vocabulary, k=rng.randint(200, 400)), rng.choices(vocabulary, k=rng.randint(200, 400))


REPEATING: Sequence[tuple[str, int]] = (("edit", 14), ("quote", 13), ("records", 13))
DIFFERENT: Sequence[tuple[str, int]] = (("prose", 14), ("written", 14), ("tokens", 12))
