"""A result of `vllm bench serve --save-result --save-detailed`: its requests as a trace, so that a run can be offered
again. One JSON object with the arrays `start_times` (seconds), `input_lens`, `output_lens`, `errors`.
"""

from __future__ import annotations

import json
from itertools import repeat
from typing import Any

from inflight.workload.traces.files import Source, TraceFormat
from inflight.workload.traces.rows import NO_OUTPUT, Reading, Rows
from inflight.workload.workload import WorkloadError


def _load(source: Source, rows: Rows, reading: Reading) -> None:
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
FORMAT = TraceFormat(
    "vllm-result",
    "one JSON object with input_lens, output_lens (vllm bench serve --save-detailed)",
    lambda head: head.is_json and (head.has("input_lens") or head.has("total_input_tokens", "request_throughput")),
    _load,
    in_order=False,
)
