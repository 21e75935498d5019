"""Traces with a hash for each block of a prompt and all before it: equal ids, equal prompts so far.

- Mooncake's (FAST'25, and the older one): `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of
  blocks of 512 tokens. The conversation trace has its times rounded to 3 s, which is noticed as everywhere (`rows`).
  Others write files of this shape with seconds: those are known by times that would be too dense in milliseconds.
- Bailian's (Qwen's): `timestamp` in seconds, blocks of 16 tokens, and `chat_id`, `parent_chat_id` (-1: a conversation's
  first turn), `type`, `turn`. A chat with a parent is a later turn: it keeps its time, and waits for its parent's
  answer where that takes longer.
"""

from __future__ import annotations

from typing import Any

from inflight.workload.traces.files import NO_NUMBERS, Source, TraceFormat, is_whole_list, numbers, objects
from inflight.workload.traces.rows import Reading, Rows


class HashedBlocks:
    """Reads `hash_ids`, blocks of `size` tokens, and counts rows with another number of them than of blocks."""

    def __init__(self, size: int, rows: Rows):
        self.size = size
        self._rows = rows
        self._others = 0
        self._first = 0

    def read(self, line: int, row: dict[str, Any], prompt_tokens: int) -> tuple[int, ...] | None:
        """Return the prompt's content ids; None where the row is malformed, which is counted."""
        ids = row.get("hash_ids")
        if not is_whole_list(ids):
            self._rows.broken(line, "hash_ids is no list of whole numbers")
            return None
        blocks = -(-prompt_tokens // self.size)
        if len(ids) != blocks:
            self._first = self._first or line
            self._others += 1
            if len(ids) > blocks:
                del ids[max(0, blocks) :]
        return tuple(ids)

    def note_mismatches(self) -> None:
        if self._others:
            self._rows.note(
                f"Rows with another number of hash_ids than blocks of {self.size} tokens: {self._others:,}, the first "
                f"in line {self._first:,}; ids beyond the prompt's end were left out, missing ones count as the "
                "prompt's own tokens."
            )


MAX_RATE, MAX_RATE_OF_FRACTIONS = 1000.0, 100.0  # requests/s, on average, that times in milliseconds may give
MIN_REQUESTS = 10  # for a rate


def _load_mooncake(source: Source, rows: Rows, reading: Reading) -> None:
    hashed, has_fractions = HashedBlocks(512, rows), False
    with source.open() as file:
        for line, row in objects(file, rows):
            if (found := numbers(row)) is None:
                rows.broken(line, NO_NUMBERS)
                continue
            milliseconds, prompt_tokens, output_tokens = found
            has_fractions = has_fractions or milliseconds % 1 != 0
            prefix = hashed.read(line, row, prompt_tokens)
            if prefix is not None:
                seconds = milliseconds / 1000
                rows.take(line, seconds, prompt_tokens, output_tokens, prefix=prefix, block_size=hashed.size)
    hashed.note_mismatches()
    _correct_seconds(rows, has_fractions)


def _correct_seconds(rows: Rows, has_fractions: bool) -> None:
    """Read the times as seconds where milliseconds would make a rate that no trace has."""
    rate, limit = rows.rate(), MAX_RATE_OF_FRACTIONS if has_fractions else MAX_RATE
    if rate > limit and len(rows.entries) >= MIN_REQUESTS:
        rows.scale_times(1000)
        rows.note(
            f"The times were read as seconds: as milliseconds, which this format has, they would be {rate:,.0f} "
            "requests per second. If they are milliseconds, play the trace 1000 times faster (--speed 1000)."
        )


def _load_bailian(source: Source, rows: Rows, reading: Reading) -> None:
    hashed = HashedBlocks(16, rows)
    turns: dict[int, int] = {}  # chat → its index among the rows that were kept
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
            if prefix is not None and rows.take(
                line, seconds, prompt_tokens, output_tokens, prefix=prefix, block_size=hashed.size, session=session,
                traffic=str(row.get("type", "")), after=before,
            ):  # fmt: skip
                turns[chat] = len(rows.entries) - 1
                orphans += before is None and parent != -1
    hashed.note_mismatches()
    if orphans:
        rows.note(f"Later turns whose parent is not among the rows before them: {orphans:,}; they wait for none.")


MOONCAKE = TraceFormat(
    "mooncake",
    "JSON lines with timestamp, input_length, output_length, hash_ids",
    lambda head: head.has("timestamp", "input_length", "output_length", "hash_ids") and not head.has("chat_id"),
    _load_mooncake,
)
BAILIAN = TraceFormat(
    "bailian",
    "JSON lines with chat_id, timestamp, input_length, output_length, hash_ids",
    lambda head: head.has("chat_id", "timestamp", "input_length", "output_length", "hash_ids"),
    _load_bailian,
)
