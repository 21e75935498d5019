"""Logs of the server: one line an event, human at a terminal, JSON otherwise; one line per finished request.

Whatever a client wrote (ids, names, paths) is escaped, so that it cannot end a line and forge another.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import IO, Any, Literal

Format = Literal["auto", "text", "json"]

# The id of the HTTP request that is being served; every line that is written meanwhile has it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)

LONGEST_VALUE = 256  # characters of one value; who sends longer names does not fill the disk with them
_REQUESTS = logging.getLogger("inflight.request")
_FAMILIES = ("inflight", "uvicorn")  # of all other loggers, warnings are logged
# C0 and C1 controls, line and paragraph separators, signs that reorder a line on a terminal, halves of characters.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+")
# What a sentence shows of a request: in quotes, or a list or an object, closed or cut off.
_VALUE = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)|`[^`]*(?:`|$)|[\[{].*)""", re.DOTALL)
_LONGEST_REASON = 160
_NEEDS_QUOTES = re.compile(r"[\s=\"\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """The log's line of a finished request. status: of HTTP. None: does not apply, or was never reached.

    request_id: of the call, as its answer has it. reason: why it was refused, without what the client wrote.
    """

    request_id: str
    tenant: str = ""
    method: str | None = None
    endpoint: str
    lane: str | None = None
    status: int
    finish_reason: str | None = None
    error_code: str | None = None
    error_param: str | None = None
    reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None


_LINE_FIELDS = tuple(item.name for item in fields(RequestLine))


def configure(format: Format = "auto", level: str = "info", stream: IO[str] | None = None) -> None:
    """Send all logs of the process to a stream (standard error), in one form.

    Once per process, before uvicorn starts, which runs with `log_config=None, access_log=False`: a request's own
    line says more than an access log would. level: debug, info, warning or error.
    """
    stream = sys.stderr if stream is None else stream
    as_text = stream.isatty() if format == "auto" else format == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines() if as_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)  # Python's own warnings are lines of the log, and not text between them
    logging.getLogger("inflight").setLevel(level.upper())
    # uvicorn's warnings are of requests that cannot be read: clients would fill the log.
    logging.getLogger("uvicorn").setLevel("DEBUG" if level == "debug" else "ERROR")
    for name in (*_FAMILIES, "uvicorn.error", "uvicorn.asgi"):  # uvicorn's own settings may have given them handlers
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").disabled = True


def begin_json(arguments: Sequence[str]) -> None:
    """Write JSON lines from the first line on, if a command line or the environment asks a server for them."""
    named = zip(("", *arguments), arguments, strict=False)
    given = "json" if any("=".join(pair).endswith("--log-format=json") for pair in named) else ""
    if arguments[:1] == ["serve"] and (given or os.environ.get("INFLIGHT_LOG_FORMAT")) == "json":
        configure("json")


def show(sentence: str, as_text: Callable[[], None], level: int = logging.ERROR) -> None:
    """Log a sentence of the start if the log is JSON; else show it as text."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        logging.getLogger("inflight").log(level, sentence)
    else:
        as_text()


def log_request(line: RequestLine) -> None:
    """Log a finished request; a failure of the server's own is a warning."""
    level = logging.WARNING if line.status >= 500 or line.finish_reason == "error" else logging.INFO
    if _REQUESTS.isEnabledFor(level):
        _REQUESTS.log(level, "request", extra={"fields": _given(line)})


def _given(line: RequestLine) -> dict[str, Any]:
    given = {name: value for name in _LINE_FIELDS if (value := getattr(line, name)) is not None and value != ""}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in given.items()}


class TextLines(logging.Formatter):
    """`12:00:00.000 INFO inflight.request request request_id=… status=200 …`, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{when}.{int(record.msecs):03d} {record.levelname} {record.name} {escaped(_message(record))}"
        for name, value in _fields(record).items():
            line += f" {name}={_quoted(value)}"
        for detail in _fault(self, record).splitlines():
            line += f"\n    | {escaped(detail)}"
        return line


class JsonLines(logging.Formatter):
    """One object a line: time (UTC, RFC 3339), level, logger, message, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in _fields(record).items():
            entry[name] = _short(value) if isinstance(value, str) else value
        fault = _fault(self, record)
        if fault:
            entry["exception"] = fault
        return json.dumps(entry, default=str)  # ASCII only: whatever could end or reorder a line is escaped


def escaped(text: str) -> str:
    """Text that stays on its line: control characters and the like as \\x.., \\u...."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def without_values(sentence: str) -> str:
    """Return a refusal's sentence for the log, without what it shows of the request: a prompt or a key, maybe."""
    return _VALUE.sub("…", sentence)[:_LONGEST_REASON]


def _message(record: logging.LogRecord) -> str:
    return _without_keys(record.getMessage())


def _fault(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback, if there is one."""
    return _without_keys(formatter.formatException(record.exc_info)) if record.exc_info else ""


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", {})
    fields = fields if isinstance(fields, dict) else {}
    known = REQUEST_ID.get()
    return fields if known is None else {**fields, "x_request_id": known}


def _quoted(value: object) -> str:
    text = str(value)
    if isinstance(value, str):
        text = _short(text)
        if not text or _NEEDS_QUOTES.search(text):
            text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return escaped(text)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _without_keys(text: str) -> str:
    """No line of ours holds a header; this is for what libraries say about a request that they could not read."""
    return _BEARER.sub(r"\1 ***", text)
