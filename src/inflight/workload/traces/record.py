"""Our own record files (`--record` of `inflight run` and `serve`) as traces.

Prompts are the recorded token ids. Answers have the length they had, or were forced to have; with several samples the
longest one's. Steps are passed over.
"""

from __future__ import annotations

import json
from typing import Any

from inflight.metrics.observation import Targets
from inflight.records.schema import VERSION
from inflight.workload.traces.files import Source, TraceFormat, is_whole_list, objects
from inflight.workload.traces.rows import Reading, Rows
from inflight.workload.workload import NO_TARGETS, Entry, WorkloadError

_DEFAULT_MAX_TOKENS = 16  # of sampling settings, which records leave out


_COMPLETE = ("stop", "length")  # finish reasons of whole answers
_STEP = '{"kind":"step"'  # as the recorder begins the lines of steps, which are most of a file


def _load(source: Source, rows: Rows, reading: Reading) -> None:
    with source.open() as file:
        _check_header(source, file.readline())
        cut_short = several = 0
        for line, record in objects(file, rows, skip=_STEP, first=2):
            if record.get("kind") != "request":
                continue
            try:
                reasons = [sample["finish_reason"] for sample in record["samples"]]
                kept = _take(rows, line, record)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                rows.broken(line, "a request record with a field missing, or of another type")
                continue
            if kept:
                cut_short += not reasons or reasons[0] not in _COMPLETE
                several += len(reasons) > 1
    if cut_short:
        rows.note(f"Requests that were aborted or failed: {cut_short:,}; their answers are as long as they had become.")
    if several:
        rows.note(f"Requests for several samples: {several:,}; one is taken, as long as the longest.")


def _take(rows: Rows, line: int, record: dict[str, Any]) -> bool:
    """Take a request and return whether it was kept. Raises one of several errors where the record is malformed."""
    prompt, slo, arrival = record["prompt_token_ids"], record["slo"], float(record["arrival"])
    longest = max([len(sample["token_ids"]) for sample in record["samples"]], default=0)
    output_tokens = record.get("forced_output_tokens", longest)
    max_tokens = record["params"].get("max_tokens", _DEFAULT_MAX_TOKENS)
    lane, tenant, cache_salt, priority = record["lane"], record["tenant"], record["cache_salt"], record["priority"]
    if not (is_whole_list(prompt) and type(output_tokens) is type(priority) is int):
        raise TypeError("a token id, the output's length or the priority is no whole number")
    if not (type(lane) is type(tenant) is type(cache_salt) is str and (max_tokens is None or type(max_tokens) is int)):
        raise TypeError("lane, tenant or cache_salt is no text, or max_tokens no whole number")
    ttft, itl = slo["ttft"], slo["itl"]
    targets = NO_TARGETS if ttft is itl is None else Targets(ttft=_limit(ttft), itl=_limit(itl))
    if not rows.accept(line, arrival, len(prompt), output_tokens):
        return False
    entry = Entry(
        rows.since(arrival), len(prompt), output_tokens, max_tokens, (), 0, tuple(prompt), cache_salt, "", None, 0.0,
        "", lane, tenant, priority, targets,
    )  # fmt: skip
    rows.entries.append(entry)
    return True


def _limit(value: Any) -> float | None:
    return None if value is None else float(value)


def _check_header(source: Source, line: str) -> None:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    kind, version = (header.get("kind"), header.get("version")) if isinstance(header, dict) else (None, None)
    if kind != "header" or version != VERSION:
        raise WorkloadError(
            f"{source.path} starts with kind {kind!r}, version {version!r}; records of version {VERSION}, written by "
            "--record, can be read as traces."
        )


FORMAT = TraceFormat(
    "record",
    "JSON lines whose first is a header with kind, version, settings",
    lambda head: head.is_json and head.has("kind", "version", "settings"),
    _load,
    in_order=False,  # requests are recorded as they end
)
