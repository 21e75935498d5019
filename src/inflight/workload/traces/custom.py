"""Plain traces: lines of `prompt[, output_tokens]` as `vllm bench serve` takes them (custom datasets), and of
`timestamp, input_length, output_length` (seconds, tokens) as GuideLLM does, as JSON lines or CSV.
"""

from __future__ import annotations

from typing import Any

from inflight.workload.traces.files import NO_NUMBERS, Source, Table, TraceFormat, is_whole_list, numbers, objects
from inflight.workload.traces.rows import Reading, Rows, TextLengths

_LENGTHS = ("timestamp", "input_length", "output_length")


def _load(source: Source, rows: Rows, reading: Reading) -> None:
    if source.head().is_json:
        _Lines(rows, reading).read(source)
    else:
        with source.open() as file:
            table = Table(file, rows)
            time, prompt, output = (table.column(name) for name in _LENGTHS)
            table.read(time, prompt, output)


class _Lines:
    def __init__(self, rows: Rows, reading: Reading):
        self._rows = rows
        self._reading = reading
        self._lengths = TextLengths(reading.count_tokens)
        self._without_output = 0
        self._without_time = 0

    def read(self, source: Source) -> None:
        with source.open() as file:
            for line, row in objects(file, self._rows):
                if "prompt" in row:
                    self._prompt(line, row)
                elif (found := numbers(row)) is not None:
                    self._rows.take(line, *found)
                else:
                    self._rows.broken(line, f"neither a prompt, nor lengths: {NO_NUMBERS}")
        self._tell()

    def _prompt(self, line: int, row: dict[str, Any]) -> None:
        prompt, output, time = row["prompt"], row.get("output_tokens"), row.get("timestamp")
        if prompt and is_whole_list(prompt):
            prompt = tuple(prompt)
        if not isinstance(prompt, str | tuple):
            self._rows.broken(line, "prompt is neither text nor a list of token ids")
            return
        if output is not None and type(output) is not int:
            self._rows.broken(line, "output_tokens is no whole number")
            return
        if time is not None and type(time) not in (int, float):
            self._rows.broken(line, "timestamp is no number")
            return
        tokens = len(prompt) if isinstance(prompt, tuple) else self._lengths.tokens(prompt)
        answer = self._reading.output_tokens if output is None else output
        if self._rows.take(line, 0.0 if time is None else time, tokens, answer, prompt=prompt):
            self._without_output += output is None
            self._without_time += time is None

    def _tell(self) -> None:
        self._lengths.note_estimates(self._rows)
        if self._without_output:
            self._rows.note(
                f"Rows without output_tokens: {self._without_output:,}; {self._reading.output_tokens} are taken."
            )
        if self._without_time:
            self._rows.note(
                f"Rows without a time: {self._without_time:,}; they come at once, unless arrivals are given."
            )


FORMAT = TraceFormat(
    "custom",
    "JSON lines with prompt, or with timestamp, input_length, output_length (these as CSV too)",
    lambda head: (head.is_json and head.has("prompt")) or (head.has(*_LENGTHS) and not head.has("hash_ids")),
    _load,
)
