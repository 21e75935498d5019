"""JSON traces, an object a line: objects with their line numbers, and the checks that all of them need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, TypeGuard

from inflight.workload.traces.rows import Rows

NO_NUMBERS = "timestamp, input_length or output_length is missing or no number"
_FAR = 1e18  # whatever the unit; JSON holds whole numbers that no float does


def objects(file: IO[str], rows: Rows, skip: str = "\n", first: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that holds one; the others are counted as malformed. skip: what lines begin
    with that are passed over unread. first: the number of the line that comes next."""
    decode = json.JSONDecoder().raw_decode  # without the two searches for spaces that `json.loads` makes
    for number, line in enumerate(file, first):
        if line.startswith(skip):
            continue
        try:
            row, end = decode(line)
            if len(line) - end > 2 and line[end:].strip():
                raise ValueError("more than one value")
        except (ValueError, RecursionError):
            if line.strip():
                rows.broken(number, "not JSON")
            continue
        if type(row) is dict:
            yield number, row
        else:
            rows.broken(number, "not a JSON object")


def numbers(row: dict[str, Any]) -> tuple[float, int, int] | None:
    """`timestamp`, `input_length` and `output_length` as they are; None where one is missing or no number."""
    arrival, prompt, output = row.get("timestamp"), row.get("input_length"), row.get("output_length")
    if type(prompt) is int and type(output) is int and (type(arrival) is float or type(arrival) is int):
        return (arrival, prompt, output) if -_FAR < arrival < _FAR else None
    return None


def is_whole_list(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of whole numbers. Their sum tells, many times faster than looking at each."""
    try:
        return type(value) is list and type(sum(value)) is int
    except TypeError:
        return False
