"""Sends spans to the collector by OpenTelemetry's SDK.

The SDK samples, batches and sends; its environment variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_BSP_…) hold. While a collector is away, one thread waits and spans are lost,
which is logged once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inflight.counted import counted
from inflight.server.tracing.call_spans import SpanFacts

FLUSH_SECONDS = 3.0  # at most, for what is not sent when the server ends
QUIET_SECONDS = 600.0  # between two warnings of a collector that comes and goes
_LONGEST_REASON = 200

log = logging.getLogger("inflight.server")


class Tracer:
    """endpoint: the collector's URL for spans. Close it."""

    def __init__(self, endpoint: str, version: str):
        attributes: dict[str, str | int] = {
            "service.name": "inflight",
            "service.version": version,
            "process.pid": os.getpid(),
        }
        resource = Resource.create({**attributes}).merge(OTELResourceDetector().detect())
        # Without exit handlers: those would wait for a collector that is away, as long as it likes.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_ReportingExporter(endpoint)))
        self._tracer = self._provider.get_tracer("inflight", version)
        self._headers = TraceContextTextMapPropagator()

    def send(self, facts: SpanFacts, parent: dict[str, str], failed: bool) -> None:
        """Send a span, as `SpanSink` has it. The parent decides whether it is sampled, without one the sampler."""
        context = self._headers.extract(parent, Context())
        span = self._tracer.start_span(facts.name, context, SpanKind.SERVER, start_time=facts.begin)
        if span.is_recording():
            if failed:
                span.set_status(StatusCode.ERROR)
            self._fill(span, facts)
        span.end(facts.end)

    def _fill(self, span: Span, facts: SpanFacts) -> None:
        span.set_attributes(facts.attributes)
        within = set_span_in_context(span, Context())
        for part in facts.parts:
            inner = self._tracer.start_span(part.name, within, start_time=part.begin)
            self._fill(inner, part)
            inner.end(part.end)

    def close(self) -> None:
        """Send the spans that are left, for at most FLUSH_SECONDS."""
        sending = threading.Thread(target=self._provider.shutdown, name="inflight-spans", daemon=True)
        sending.start()
        sending.join(FLUSH_SECONDS)
        if sending.is_alive():
            log.warning(f"The last spans were not taken within {FLUSH_SECONDS:g} s, and are lost.")


class _ReportingExporter(SpanExporter):
    """The SDK's exporter, whose failures are logged once, when they begin and when they end."""

    def __init__(self, endpoint: str):
        self._inner = OTLPSpanExporter(endpoint)
        self._endpoint = _without_password(endpoint)
        self._lost = 0
        self._is_failing = False
        self._reported_at = -QUIET_SECONDS
        of_sdk = logging.getLogger("opentelemetry")
        of_sdk.propagate = False
        of_sdk.addHandler(_Reasons(self))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
        elif self._is_failing:
            self._is_failing = False
            lost, self._lost = self._lost, 0
            log.info(f"Spans reach the collector at {self._endpoint} again; {counted(lost, 'span')} did not.")
        return result

    def failed(self, reason: str) -> None:
        now = time.monotonic()
        if self._is_failing or now - self._reported_at < QUIET_SECONDS:
            return
        self._is_failing, self._reported_at = True, now
        log.warning(
            f"Spans do not reach the collector at {self._endpoint} ({reason[:_LONGEST_REASON]}); requests go on "
            "without them. Check the collector and --otlp-traces-endpoint; this is logged once while it lasts."
        )

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]


class _Reasons(logging.Handler):
    """Receives the log records of the SDK."""

    def __init__(self, exporter: _ReportingExporter):
        super().__init__(logging.WARNING)
        self._exporter = exporter

    def emit(self, record: logging.LogRecord) -> None:
        self._exporter.failed(record.getMessage())


def _without_password(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
