"""The text about batching and serving: answers, the questions that ask for them, and conversations made of both.

What it knows: the form of `data/*.jsonl` and of `unseen.jsonl`, and how an epoch's conversations are drawn. What it
does not know: tokens.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rewording import reword

Turns = list[tuple[str, str]]  # questions, each with its answer
OFF_TOPIC = "off_topic"


@dataclass(frozen=True)
class Entry:
    """One answer, the questions that ask for it, and the entries that may follow it in a conversation."""

    questions: list[str]
    answer: str
    follow_ups: list["Entry"]
    topic: str

    @classmethod
    def read(cls, record: dict, topic: str) -> "Entry":
        follow_ups = [cls.read(each, topic) for each in record.get("follow_ups", [])]
        return cls(record["questions"], record["answer"], follow_ups, topic)


def read_entries(folder: Path) -> list[Entry]:
    return [
        Entry.read(json.loads(line), path.stem)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def listed_conversations(entries: list[Entry]) -> Iterator[Turns]:
    """Every listed question once, exactly as written; a follow-up comes after its parent's first question."""
    for entry in entries:
        for question in entry.questions:
            yield [(question, entry.answer)]
        for follow_up in entry.follow_ups:
            for question in follow_up.questions:
                yield [(entry.questions[0], entry.answer), (question, follow_up.answer)]


def unseen_conversations(entries: list[Entry], path: Path) -> list[list[Turns]]:
    """For each unseen question the conversations that would be right; off topic, any answer of that kind will do."""
    answers = {question: entry.answer for entry in entries for question in entry.questions}
    off_topic = [entry.answer for entry in entries if entry.topic == OFF_TOPIC]
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    right = [off_topic if case["like"] == "off topic" else [answers[case["like"]]] for case in cases]
    return [[[(case["question"], answer)] for answer in each] for case, each in zip(cases, right, strict=True)]


def ask(entry: Entry, rng: random.Random) -> str:
    question = rng.choice(entry.questions)
    return question if rng.random() < 0.3 else reword(question, rng)


def conversations_of_epoch(entries: list[Entry], rng: random.Random) -> Iterator[Turns]:
    """Each answer once, asked in varied words; some after unrelated turns, so that longer chats work."""
    short = [entry for entry in entries if len(entry.answer) < 400]
    for entry in entries:
        turns = [(ask(entry, rng), entry.answer)]
        while rng.random() < 0.25:
            other = rng.choice(short)
            turns.insert(0, (ask(other, rng), other.answer))
        yield turns
        for follow_up in entry.follow_ups:
            yield [(ask(entry, rng), entry.answer), (ask(follow_up, rng), follow_up.answer)]


def drills_of_epoch(entries: list[Entry], drills: int, rng: random.Random) -> Iterator[Turns]:
    """Single questions whose rows will be cut short: how an answer begins is the hard part, and these are cheap."""
    for entry in entries:
        for _ in range(max(drills, len(entry.questions) // 2)):
            yield [(ask(entry, rng), entry.answer)]
