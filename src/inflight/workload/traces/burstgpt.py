"""BurstGPT, v1.1 and v1.2: `Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,…,Log Type`.

Columns are found by name, because v1.2 put two between the others. Times are seconds; failed calls have no response.
"""

from __future__ import annotations

from inflight.workload.traces.files import Source, Table, TraceFormat
from inflight.workload.traces.rows import Reading, Rows


def _load(source: Source, rows: Rows, reading: Reading) -> None:
    with source.open() as file:
        table = Table(file, rows)
        columns = (table.column(name) for name in ("timestamp", "request tokens", "response tokens"))
        time, prompt, output = columns
        session, model, log = (table.optional(name) for name in ("session id", "model", "log type"))
        names: dict[tuple[str, str], str] = {}  # one text for each kind, not one a row

        def traffic(row: list[str]) -> str:
            kind = ("" if model is None else row[model], "" if log is None else row[log])
            return names.setdefault(kind, ", ".join(part for part in kind if part))

        table.read(time, prompt, output, session=session, traffic=traffic)


FORMAT = TraceFormat(
    "burstgpt",
    "columns Timestamp, Request tokens, Response tokens",
    lambda head: head.has("timestamp", "request tokens", "response tokens"),
    _load,
)
