"""Production traces as CSV.

- Azure's LLM inference traces, 2023 (code, conv), 2024 (one week each), 2025 (with images):
  `TIMESTAMP,ContextTokens,GeneratedTokens`; times as `2023-11-16 18:17:03.9799600`: seven fractional digits, or fewer,
  or none, with or without a zone.
- BurstGPT, v1.1 and v1.2: `Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,…,Log Type`.
  Columns are found by name, because v1.2 put two between the others. Times are seconds; failed calls have no response.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from inflight.workload.traces.files import Source, Table, TraceFormat
from inflight.workload.traces.rows import Reading, Rows

_AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_BURSTGPT_COLUMNS = ("timestamp", "request tokens", "response tokens")


def _load_azure(source: Source, rows: Rows, reading: Reading) -> None:
    with source.open() as file:
        table = Table(file, rows)
        time, prompt, output = table.columns(*_AZURE_COLUMNS)
        images, seen = table.optional("numimages"), set()

        def watched(row: list[str]) -> str:
            seen.add(row[images or 0])
            return ""

        table.read(time, prompt, output, _clock(), traffic=watched if images is not None else None)
    if seen - {"0", ""}:
        rows.note("Requests with images count as their context tokens; the images are not in the trace.")


def _clock() -> Callable[[str], float]:
    """Return a parser of times, in seconds after the first minute.

    Days and minutes are parsed once a minute, so that a row costs one float; counting from the trace's own beginning
    keeps the tenths of microseconds that a double of today's date would lose.
    """
    origin: datetime | None = None
    minutes: dict[str, float] = {}

    def minute(text: str) -> float:
        nonlocal origin
        moment = datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
        origin = origin or moment
        return (moment - origin).total_seconds()

    def seconds(text: str) -> float:
        start = minutes.get(text[:16])
        if start is None:
            start = minutes[text[:16]] = minute(text[:16])
        rest = text[17:]
        if rest.endswith("+00:00"):
            return start + float(rest[:-6])
        return start + (_zoned(rest) if rest[2:3] != "." or not rest[3:].isdecimal() else float(rest))

    return seconds


def _zoned(rest: str) -> float:
    """Parse the seconds of a minute with a zone behind them, in UTC."""
    if rest.endswith("Z"):
        return float(rest[:-1])
    number, sign, zone = rest[:-6], rest[-6:-5], rest[-5:]
    if sign not in ("+", "-") or not sign or zone[2] != ":":
        raise ValueError(rest)
    offset = 3600 * int(zone[:2]) + 60 * int(zone[3:])
    return float(number) - (offset if sign == "+" else -offset)


AZURE = TraceFormat(
    "azure",
    "columns TIMESTAMP, ContextTokens, GeneratedTokens",
    lambda head: head.has(*_AZURE_COLUMNS),
    _load_azure,
)


def _load_burstgpt(source: Source, rows: Rows, reading: Reading) -> None:
    with source.open() as file:
        table = Table(file, rows)
        time, prompt, output = table.columns(*_BURSTGPT_COLUMNS)
        session, model, log = (table.optional(name) for name in ("session id", "model", "log type"))
        names: dict[tuple[str, str], str] = {}  # one text for each kind, not one a row

        def traffic(row: list[str]) -> str:
            kind = ("" if model is None else row[model], "" if log is None else row[log])
            return names.setdefault(kind, ", ".join(part for part in kind if part))

        table.read(time, prompt, output, session=session, traffic=traffic)


BURSTGPT = TraceFormat(
    "burstgpt",
    "columns Timestamp, Request tokens, Response tokens",
    lambda head: head.has(*_BURSTGPT_COLUMNS),
    _load_burstgpt,
)
