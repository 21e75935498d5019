"""Our own record files (`--record` of `inflight run` and `serve`) as traces.

Prompts are the recorded token ids. Answers have the length they had, or were forced to have; with several samples the
longest one's. Steps are passed over.
"""

from __future__ import annotations

import json

from msgspec import Struct

from inflight.core.types.events import Finish
from inflight.core.types.request import Request
from inflight.metrics.observation import Targets
from inflight.records.checked import Malformed, converted
from inflight.records.schema import VERSION
from inflight.records.version1 import upgraded
from inflight.workload.traces.files import Source, TraceFormat, objects
from inflight.workload.traces.rows import Reading, Rows
from inflight.workload.workload import NO_TARGETS, WorkloadError

_COMPLETE = ("stop", "length")  # finish reasons of whole answers
_STEP = '{"kind":"step"'  # as the recorder begins the lines of steps, which are most of a file


class _Sample(Struct):
    token_ids: tuple[int, ...]
    finish: Finish


class _Recorded(Struct):
    """Fields of a `RequestRecord` that a trace is made of."""

    request: Request
    samples: tuple[_Sample, ...]


def _load(source: Source, rows: Rows, reading: Reading) -> None:
    with source.open() as file:
        version = _version(source, file.readline())
        cut_short = several = 0
        for line, found in objects(file, rows, skip=_STEP, first=2):
            if found.get("kind") != "request":
                continue
            try:
                record = converted(upgraded(found) if version == 1 else found, _Recorded)
            except Malformed:
                rows.broken(line, "a request record with a field missing, or of another type")
                continue
            if _take(rows, line, record):
                reasons = [sample.finish.reason for sample in record.samples]
                cut_short += not reasons or reasons[0] not in _COMPLETE
                several += len(reasons) > 1
    if cut_short:
        rows.note(f"Requests that were aborted or failed: {cut_short:,}; their answers are as long as they had become.")
    if several:
        rows.note(f"Requests for several samples: {several:,}; one is taken, as long as the longest.")


def _take(rows: Rows, line: int, record: _Recorded) -> bool:
    """Take a request and return whether it was kept."""
    asked, slo = record.request, record.request.slo
    output_tokens = asked.forced_output_tokens
    if output_tokens is None:
        output_tokens = max([len(sample.token_ids) for sample in record.samples], default=0)
    targets = NO_TARGETS if slo.ttft is slo.pace is None else Targets(ttft=slo.ttft, itl=slo.itl, tpot=slo.tpot)
    prompt = asked.prompt_token_ids
    return rows.take(
        line, asked.arrival, len(prompt), output_tokens, prompt=prompt, max_tokens=asked.params.max_tokens,
        cache_salt=asked.cache_salt, lane=asked.lane, tenant=asked.tenant, priority=asked.priority, targets=targets,
        session=asked.session, program=asked.program,
    )  # fmt: skip


def _version(source: Source, line: str) -> int:
    """Return the version that a header names. Raises WorkloadError."""
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    kind, version = (header.get("kind"), header.get("version")) if isinstance(header, dict) else (None, None)
    if kind != "header" or version not in (1, VERSION):
        raise WorkloadError(
            f"{source.path} starts with kind {kind!r}, version {version!r}; records of versions 1 to {VERSION}, "
            "written by --record, can be read as traces."
        )
    return int(version)


FORMAT = TraceFormat(
    "record",
    "JSON lines whose first is a header with kind, version, settings",
    lambda head: head.is_json and head.has("kind", "version", "settings"),
    _load,
    in_order=False,  # requests are recorded as they end
)
