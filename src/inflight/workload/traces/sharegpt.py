"""ShareGPT: a JSON list of `{id, conversations: [{from: "human" | "gpt" | …, value}]}`, or such objects line by line.

A question and the answer after it are a turn; messages before the first question (answers, system texts) are left out.
Only the first turn is taken unless more are asked for, as published results with these conversations do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from inflight.workload.traces.files import Source, TraceFormat
from inflight.workload.traces.rows import Reading, Rows, TextLengths

_CHUNK = 1 << 20  # characters
_HUMAN, _MODEL = ("human", "user"), ("gpt", "chatgpt", "assistant", "bard", "bing")


def _load(source: Source, rows: Rows, reading: Reading) -> None:
    lengths, read, late = TextLengths(reading.count_tokens), 0, 0
    with source.open() as file:
        for read, conversation in enumerate(_values(file, rows), 1):
            said = _said(conversation)
            if said is None:
                rows.broken(read, "no list of messages with from and value")
                continue
            late += bool(said) and said[0][0] not in _HUMAN
            turns = _turns(said)[: reading.turns]
            if turns:
                _take(rows, lengths, read, turns, str(conversation.get("id", read)) if len(turns) > 1 else "")
            else:
                rows.drop(read, "no question with an answer" if said else "an empty conversation")
    rows.read, rows.counted = read, "conversation"
    lengths.note_estimates(rows)
    if late:
        rows.note(
            f"Conversations that begin with no question: {late:,}; what stands before the first one was left out."
        )
    rows.note("Conversations state no times; they come at once, unless arrivals are given.")


def _said(conversation: Any) -> list[tuple[str, str]] | None:
    """Return (from, value) of its messages; None where it is no conversation."""
    messages = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(messages, list):
        return None
    said = [(one.get("from"), one.get("value")) if isinstance(one, dict) else (None, None) for one in messages]
    texts = [(who, what) for who, what in said if isinstance(who, str) and isinstance(what, str)]
    return texts if len(texts) == len(said) else None


def _turns(said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return (question, answer), neither empty, from the first question on, while they alternate."""
    start = next((index for index, (who, _) in enumerate(said) if who in _HUMAN), len(said))
    turns = []
    for (asker, question), (answerer, answer) in zip(said[start::2], said[start + 1 :: 2], strict=False):
        if asker not in _HUMAN or answerer not in _MODEL or not question or not answer:
            break
        turns.append((question, answer))
    return turns


def _take(rows: Rows, lengths: TextLengths, number: int, turns: list[tuple[str, str]], session: str) -> None:
    so_far, before = 0, None
    for question, answer in turns:
        prompt_tokens, output_tokens = so_far + lengths.tokens(question), lengths.tokens(answer)
        if not rows.take(number, 0.0, prompt_tokens, output_tokens, session=session, after=before, prompt=question):
            return
        so_far, before = prompt_tokens + output_tokens, len(rows.entries) - 1


def _values(file: IO[str], rows: Rows) -> Iterator[Any]:
    """Yield the values of a JSON list, or of a file of values, without reading the whole file at once."""
    decode, text, at, wanted = json.JSONDecoder().raw_decode, file.read(_CHUNK), 0, _CHUNK
    text = text.lstrip().removeprefix("[")
    number = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            if at < len(text):
                value, at = decode(text, at)
                number += 1
                wanted = _CHUNK
                yield value
                continue
        except (ValueError, RecursionError):
            if text[at] == "]":
                return
        more = file.read(wanted)
        if not more:
            if at < len(text):
                rows.note(f"The file ends, or is no JSON, after conversation {number:,}; those before it are taken.")
            return
        text, at = text[at:] + more, 0
        wanted *= 2  # so that a value longer than a piece is not looked at once a piece


FORMAT = TraceFormat(
    "sharegpt",
    "a JSON list of objects with conversations",
    lambda head: head.is_json and head.has("conversations"),
    _load,
)
