"""A collector in the test's own process: takes OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Value = str | bool | int | float | list[Any]


class Spanned:
    """A span as it came. begin, end: seconds since 1970."""

    def __init__(self, span: Any, resource: dict[str, Value]):
        self.name: str = span.name
        self.trace, self.id, self.parent = (one.hex() for one in (span.trace_id, span.span_id, span.parent_span_id))
        self.kind, self.failed = span.kind, span.status.code == 2
        self.begin, self.end = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
        self.state: str = span.trace_state
        self.attributes, self.resource = _read(span.attributes), resource

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Collector:
    """status: that it answers with."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Spanned] = []
        self.paths: list[str] = []
        self.status = status
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.status == 200:
                    outer.paths.append(self.path)
                    outer.spans += _spans(message)
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Spanned]:
        return [one for one in self.spans if one.name == name]

    def within(self, span: Spanned) -> dict[str, Spanned]:
        return {one.name: one for one in self.spans if one.parent == span.id}

    def has(self, met: Callable[[], Any], seconds: float = 20) -> bool:
        end = time.monotonic() + seconds
        while not met() and time.monotonic() < end:
            time.sleep(0.02)
        return bool(met())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _spans(message: Any) -> list[Spanned]:
    return [
        Spanned(span, _read(resource.resource.attributes))
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _read(attributes: Any) -> dict[str, Value]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    found: Value = getattr(value, kind)
    return found
