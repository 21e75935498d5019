"""Bailian's (Qwen's) traces: `chat_id`, `parent_chat_id` (-1: a conversation's first turn), `timestamp` in seconds,
`input_length`, `output_length`, `type`, `turn`, `hash_ids` of blocks of 16 tokens.

A chat with a parent is a later turn: it keeps its time, and waits for its parent's answer where that takes longer.
"""

from __future__ import annotations

from inflight.workload.traces.hashed import HashedBlocks
from inflight.workload.traces.lines import NO_NUMBERS, numbers, objects
from inflight.workload.traces.rows import Reading, Rows, TraceFormat
from inflight.workload.traces.source import Head, Source
from inflight.workload.traces.trace import Trace

_BLOCK = 16  # tokens


def _recognises(head: Head) -> bool:
    return head.has("chat_id", "timestamp", "input_length", "output_length", "hash_ids")


def _load(source: Source, rows: Rows, reading: Reading) -> Trace:
    hashed = HashedBlocks(_BLOCK, rows)
    turns: dict[int, int] = {}  # chat: its place among the rows that were kept
    orphans = 0
    with source.open() as file:
        for line, row in objects(file, rows):
            found, chat, parent = numbers(row), row.get("chat_id"), row.get("parent_chat_id", -1)
            if found is None or type(chat) is not int or type(parent) is not int:
                rows.broken(line, NO_NUMBERS if found is None else "chat_id or parent_chat_id is no whole number")
                continue
            seconds, prompt_tokens, output_tokens = found
            prefix = hashed.read(line, row, prompt_tokens)
            before = turns.get(parent) if parent != -1 else None
            session = str(chat) if before is None else rows.entries[before].session
            traffic = str(row.get("type", ""))
            if prefix is not None and rows.take(
                line, seconds, prompt_tokens, output_tokens, prefix, _BLOCK, session, traffic, before
            ):
                turns[chat] = len(rows.entries) - 1
                orphans += before is None and parent != -1
    hashed.note_mismatches()
    if orphans:
        rows.note(f"Later turns whose parent is not among the rows before them: {orphans:,}; they wait for nobody.")
    return rows.finish(FORMAT.name)


FORMAT = TraceFormat(
    "bailian", "JSON lines with chat_id, timestamp, input_length, output_length, hash_ids", _recognises, _load
)
