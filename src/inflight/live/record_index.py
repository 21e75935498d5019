"""Read a record's length and the arrivals of its requests before it is drawn.

A record has a request's line at its end; a picture of the queue needs it at its arrival. So the file is read twice:
here for the requests alone, whose prompts and answers are only counted, and then step by step. A truncated record is
read as far as it goes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inflight.core.types.request import SLO
from inflight.core.types.timings import Timings
from inflight.records.checked import MAX_BYTES, Malformed
from inflight.records.schema import Header, RecordError, RequestRecord, decode_line, header_of, read_records, value_of

_STEP, _REQUEST = b'{"kind":"step"', b'{"kind":"request"'  # as the recorder begins them


class _StepTimes(Struct, frozen=True):
    planned: float
    committed: float


class _Kind(Struct, frozen=True):
    kind: str = ""


class RecordedRequest(Struct, frozen=True):
    """A request that has ended.

    Attributes:
        sequences: Number of output tokens of each sample's sequence.
        reason: The worst finish reason of its samples.
    """

    request_id: str
    lane: str
    tenant: str
    arrival: float
    ended: float
    prompt_tokens: int
    slo: SLO
    timings: Timings
    sequences: dict[int, int]
    reason: str


class RecordIndex(Struct, frozen=True):
    """The contents of a record, without its steps.

    Attributes:
        requests: In the order of their arrival.
        start: First second of the record.
        end: Last second of the record.
    """

    path: Path
    header: Header
    requests: list[RecordedRequest]
    steps: int
    start: float
    end: float

    def setting(self, name: str, default: Any) -> Any:
        return value_of(self.header.settings.get(name, default))


_times = msgspec.json.Decoder(_StepTimes)
_kind = msgspec.json.Decoder(_Kind)
_WORST_FIRST = ("error", "abort", "length", "stop")


def read_index(path: Path) -> RecordIndex:
    """Read the index of a record. Raises RecordError for a file that is no record or has no step."""
    lines = read_records(path)
    header = header_of([next(lines)])
    lines.close()  # type: ignore[attr-defined]  # a generator, which holds the file open
    requests: list[RecordedRequest] = []
    steps, first, last = 0, b"", b""
    with path.open("rb") as file:
        file.readline(MAX_BYTES + 1)
        while line := file.readline(MAX_BYTES + 1):
            kind = _kind_of(line)
            if kind == "step":
                steps += 1
                first, last = first or line, line if line.endswith(b"\n") else last or line
            elif kind == "request" and (one := _read(line, header.version)) is not None:
                requests.append(one)
    times = [found for line in (first, last) if (found := _step_times(line)) is not None]
    if not times:
        raise RecordError(
            f"{path} holds a header and {len(requests)} requests, but 0 steps, so there is nothing to draw. Record a "
            "run that answers requests."
        )
    requests.sort(key=lambda one: one.arrival)
    start = min([times[0].planned, *(one.arrival for one in requests[:1])])
    end = max([times[-1].committed, *(one.ended for one in requests)])
    return RecordIndex(path, header, requests, steps, start, end)


def _kind_of(line: bytes) -> str:
    if line.startswith(_STEP):
        return "step"
    if line.startswith(_REQUEST):
        return "request"
    try:
        return _kind.decode(line).kind
    except (msgspec.MsgspecError, ValueError):
        return ""


def _step_times(line: bytes) -> _StepTimes | None:
    try:
        return _times.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def _read(line: bytes, version: int) -> RecordedRequest | None:
    """Return a request's entry; None for a damaged line, which is reported when it is drawn."""
    try:
        one = decode_line(line, version)
    except Malformed:
        return None
    assert isinstance(one, RequestRecord), "its line says so"
    request, reasons = one.request, {sample.finish.reason for sample in one.samples}
    return RecordedRequest(
        request.request_id,
        request.lane,
        request.tenant,
        request.arrival,
        one.ended,
        len(request.prompt_token_ids),
        request.slo,
        one.timings,
        {sample.sequence_id: len(sample.token_ids) for sample in one.samples},
        next((reason for reason in _WORST_FIRST if reason in reasons), "error"),
    )
