"""Files of benchmark tools.

- Custom datasets of `vllm bench serve`: lines of `prompt[, output_tokens]`; and GuideLLM's `timestamp, input_length,
  output_length` (seconds, tokens), as JSON lines or CSV.
- Results of `vllm bench serve --save-result --save-detailed`, so that a run can be offered again: one JSON object with
  the arrays `start_times` (seconds), `input_lens`, `output_lens`, `errors`.
"""

from __future__ import annotations

import json
from itertools import repeat
from typing import Any

from inflight.workload.traces.files import NO_NUMBERS, Source, Table, TraceFormat, is_whole_list, numbers, objects
from inflight.workload.traces.rows import NO_OUTPUT, Reading, Rows, TextLengths
from inflight.workload.workload import WorkloadError

_LENGTHS = ("timestamp", "input_length", "output_length")


def _load_custom(source: Source, rows: Rows, reading: Reading) -> None:
    if source.head().is_json:
        _Lines(rows, reading).read(source)
    else:
        with source.open() as file:
            table = Table(file, rows)
            time, prompt, output = table.columns(*_LENGTHS)
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
        self._note()

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

    def _note(self) -> None:
        self._lengths.note_estimates(self._rows)
        if self._without_output:
            self._rows.note(
                f"Rows without output_tokens: {self._without_output:,}; {self._reading.output_tokens} are taken."
            )
        if self._without_time:
            self._rows.note(
                f"Rows without a time: {self._without_time:,}; they come at once, unless arrivals are given."
            )


CUSTOM = TraceFormat(
    "custom",
    "JSON lines with prompt, or with timestamp, input_length, output_length (these as CSV too)",
    lambda head: (head.is_json and head.has("prompt")) or (head.has(*_LENGTHS) and not head.has("hash_ids")),
    _load_custom,
)


def _load_result(source: Source, rows: Rows, reading: Reading) -> None:
    with source.open() as file:
        try:
            result = json.load(file)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"{source.path} is not one JSON object: {error}; it may be cut off.") from None
    prompts, outputs = _array(result, "input_lens", source), _array(result, "output_lens", source)
    if len(prompts) != len(outputs):
        raise WorkloadError(
            f"{source.path} has {len(prompts):,} input_lens but {len(outputs):,} output_lens, which belong together."
        )
    rows.counted = "request"
    starts = result.get("start_times")
    if not isinstance(starts, list) or len(starts) != len(prompts):
        rows.note("The result holds no start_times for its requests; they come at once, unless arrivals are given.")
        starts = repeat(0.0, len(prompts))
    errors = result.get("errors")
    failures = errors if isinstance(errors, list) and len(errors) == len(prompts) else repeat("", len(prompts))
    for number, (start, prompt, output, failure) in enumerate(zip(starts, prompts, outputs, failures, strict=True), 1):
        if type(prompt) is not int or type(output) is not int or type(start) not in (int, float):
            rows.broken(number, "its start or one of its lengths is no number")
        elif failure:
            rows.drop(number, NO_OUTPUT if not output else "the request failed")
        else:
            rows.take(number, start, prompt, output)


def _array(result: Any, name: str, source: Source) -> list[Any]:
    array = result.get(name) if isinstance(result, dict) else None
    if not isinstance(array, list):
        raise WorkloadError(f"{source.path} has no array {name}; `vllm bench serve` writes it with --save-detailed.")
    return array


# The requests of a run are listed as they were made, and were sent in that order but for the workings of a client.
VLLM_RESULT = TraceFormat(
    "vllm-result",
    "one JSON object with input_lens, output_lens (vllm bench serve --save-detailed)",
    lambda head: head.is_json and (head.has("input_lens") or head.has("total_input_tokens", "request_throughput")),
    _load_result,
    in_order=False,
)
