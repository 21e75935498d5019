"""Logs: one line an event, whatever a client wrote; a request's line holds counts and times, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from inflight.server.logs import LONGEST_VALUE, Format, RequestLine, configure, escaped, log_request

NAMES = ("", "inflight", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")
LINE = RequestLine(
    request_id="cmpl-1",
    tenant="acme",
    endpoint="/v1/completions",
    lane="interactive",
    status=200,
    finish_reason="stop",
    prompt_tokens=12,
    cached_tokens=0,
    output_tokens=5,
    queue_ms=0.25,
    ttft_ms=10.5,
    total_ms=20.123456,
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Logging is the process's; leave it as it was."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(list(one.handlers), one.level, one.propagate, one.disabled) for one in loggers]
    yield
    logging.captureWarnings(False)
    for one, (handlers, level, propagate, disabled) in zip(loggers, before, strict=True):
        one.handlers[:], one.propagate, one.disabled = handlers, propagate, disabled
        one.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(line: RequestLine, form: Format = "json") -> str:
    stream = io.StringIO()
    configure(form, stream=stream)
    log_request(line)
    return stream.getvalue()


def test_a_finished_request_is_one_json_line() -> None:
    entry = json.loads(logged(LINE))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "info",
        "logger": "inflight.request",
        "message": "request",
        "request_id": "cmpl-1",
        "tenant": "acme",
        "endpoint": "/v1/completions",
        "lane": "interactive",
        "status": 200,
        "finish_reason": "stop",
        "prompt_tokens": 12,
        "cached_tokens": 0,
        "output_tokens": 5,
        "queue_ms": 0.25,
        "ttft_ms": 10.5,
        "total_ms": 20.123,
    }


def test_a_finished_request_is_one_line_of_text() -> None:
    line = logged(LINE, "text")
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} INFO inflight\.request request request_id=cmpl-1 ", line)
    assert line.endswith("queue_ms=0.25 ttft_ms=10.5 total_ms=20.123\n")
    assert " cached_tokens=0 " in line


def test_what_does_not_apply_is_left_out() -> None:
    entry = json.loads(logged(RequestLine(request_id="r", endpoint="/v1/completions", status=429, error_code="busy")))
    assert set(entry) == {"time", "level", "logger", "message", "request_id", "endpoint", "status", "error_code"}


def test_a_line_has_no_place_for_texts_and_secrets() -> None:
    allowed = {"request_id", "tenant", "method", "endpoint", "lane", "status", "finish_reason"}
    allowed |= {"error_code", "error_param", "reason"}  # a reason goes through `without_values`
    counts = {"prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "total_ms"}
    assert {field.name for field in fields(RequestLine)} == allowed | counts


@pytest.mark.parametrize(
    ("status", "reason", "level"),
    [(200, "stop", "info"), (429, None, "info"), (500, None, "warning"), (200, "error", "warning")],
)
def test_the_servers_own_failures_are_warnings(status: int, reason: str | None, level: str) -> None:
    line = RequestLine(request_id="r", endpoint="/v1/completions", status=status, finish_reason=reason)
    assert json.loads(logged(line))["level"] == level


def test_auto_is_text_at_a_terminal_and_json_elsewhere() -> None:
    terminal = Terminal()
    configure("auto", stream=terminal)
    log_request(LINE)
    assert "request_id=cmpl-1" in terminal.getvalue()
    assert json.loads(logged(LINE, "auto"))


def test_levels() -> None:
    stream = io.StringIO()
    configure("json", "warning", stream)
    log_request(LINE)
    logging.getLogger("inflight.server").warning("The disk is full.")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["The disk is full."]


FORGERY = 'x\n12:00:00.000 INFO inflight.request request request_id=forged status=200\r\x1b[2K\u2028\u202e\x85"'


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("field", ["request_id", "tenant", "endpoint", "lane", "finish_reason", "error_code"])
def test_no_value_can_forge_a_line(form: Format, field: str) -> None:
    values: dict[str, Any] = {"request_id": "r", "endpoint": "/v1", "status": 200, field: FORGERY}
    line = logged(RequestLine(**values), form)
    assert line.count("\n") == 1 and line.endswith("\n")
    assert len(line.splitlines()) == 1  # nor by what Python takes for the end of a line
    assert line[:-1].isprintable()
    if form == "json":
        assert json.loads(line)[field] == FORGERY


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
@settings(deadline=None, max_examples=200)
def test_values_of_text_lines_can_be_distinguished(tenant: str, request_id: str) -> None:
    line = logged(RequestLine(request_id=request_id, tenant=tenant, endpoint="/v1", status=200), "text")
    assert len(line.splitlines()) == 1
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)  # without what stands in quotes
    names = re.findall(r" ([a-z_]+)=", outside)
    assert names == [
        name
        for name in ("request_id", "tenant", "endpoint", "status")
        if (name != "tenant" or tenant) and (name != "request_id" or request_id)
    ]


@pytest.mark.parametrize("form", ["text", "json"])
def test_messages_and_faults_cannot_forge_a_line_either(form: Format) -> None:
    stream = io.StringIO()
    configure(form, stream=stream)
    try:
        raise ValueError("bad\nforged line\x1b[31m")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("path %s", "/a\nforged line")
    lines = stream.getvalue().splitlines()
    assert not any(line.startswith("forged") for line in lines)
    assert "\x1b" not in stream.getvalue()
    if form == "json":
        (entry,) = map(json.loads, lines)
        assert "ValueError" in entry["exception"]
    else:
        assert all(line.startswith("    | ") for line in lines[1:])
        assert any("ValueError: bad" in line for line in lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_keys_in_what_libraries_say_are_struck_out(form: Format) -> None:
    stream = io.StringIO()
    configure(form, stream=stream)
    try:
        raise ValueError("header Authorization: bearer sk-secret-2")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Invalid header 'Authorization: Bearer sk-secret-1'")
    assert "sk-secret" not in stream.getvalue() and "***" in stream.getvalue()


def test_long_names_are_cut() -> None:
    entry = json.loads(logged(RequestLine(request_id="x" * 10_000, endpoint="/v1", status=200)))
    assert len(entry["request_id"]) == LONGEST_VALUE


@pytest.mark.parametrize("again", [1, 3])
def test_all_loggers_write_here_once_without_the_access_log_and_the_warnings_of_unreadable_requests(again: int) -> None:
    stream = io.StringIO()
    logging.getLogger("uvicorn.error").addHandler(logging.StreamHandler(stream))
    for _ in range(again):
        configure("json", stream=stream)
    logging.getLogger("uvicorn.error").info("Started server process [7]")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").error("The socket %d was closed.", 7)
    logging.getLogger("uvicorn.access").info("127.0.0.1 - GET /")
    logging.getLogger("inflight.server").info("ready")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(one["logger"], one["message"]) for one in entries] == [
        ("uvicorn.error", "The socket 7 was closed."),
        ("inflight.server", "ready"),
        ("asyncio", "Task exception was never retrieved"),
    ]


def test_ordinary_text_stays_as_it_is() -> None:
    assert escaped("Grüße, 世界 🙂") == "Grüße, 世界 🙂"


def test_warnings_of_python_are_lines_of_the_log() -> None:
    stream = io.StringIO()
    configure("json", stream=stream)
    warnings.warn("a coroutine was never awaited", RuntimeWarning, stacklevel=1)
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["level"] == "warning" and "never awaited" in json.loads(line)["message"]
