"""Mooncake's traces (FAST'25, and the older one): `timestamp` in milliseconds, `input_length`, `output_length`,
`hash_ids` of blocks of 512 tokens.

The conversation trace has its times rounded to 3 s, which is noticed as with any other trace (`rows`).
"""

from __future__ import annotations

from inflight.workload.traces.hashed import HashedBlocks
from inflight.workload.traces.lines import NO_NUMBERS, numbers, objects
from inflight.workload.traces.rows import Reading, Rows, TraceFormat
from inflight.workload.traces.source import Head, Source
from inflight.workload.traces.trace import Trace

_BLOCK = 512  # tokens


def _recognises(head: Head) -> bool:
    return head.has("timestamp", "input_length", "output_length", "hash_ids") and not head.has("chat_id")


def _load(source: Source, rows: Rows, reading: Reading) -> Trace:
    hashed = HashedBlocks(_BLOCK, rows)
    with source.open() as file:
        for line, row in objects(file, rows):
            found = numbers(row)
            if found is None:
                rows.broken(line, NO_NUMBERS)
                continue
            milliseconds, prompt_tokens, output_tokens = found
            prefix = hashed.read(line, row, prompt_tokens)
            if prefix is not None:
                rows.take(line, milliseconds / 1000, prompt_tokens, output_tokens, prefix, _BLOCK)
    hashed.note_mismatches()
    return rows.finish(FORMAT.name)


FORMAT = TraceFormat("mooncake", "JSON lines with timestamp, input_length, output_length, hash_ids", _recognises, _load)
