"""Opens and closes the tracer, as `--otlp-traces-endpoint` says."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from inflight.config.setting import SettingsError
from inflight.extras import pip_install
from inflight.server.settings import ServerSettings

if TYPE_CHECKING:
    from inflight.server.tracing.tracer import Tracer

_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def open_tracer(settings: ServerSettings, version: str) -> Tracer | None:
    """Return a tracer; None where no collector is named. Raises SettingsError."""
    if settings.otlp_traces_endpoint is None:
        return None
    check_tracing(settings)
    from inflight.server.tracing.tracer import Tracer

    return Tracer(spans_url(settings.otlp_traces_endpoint), version)


def spans_url(endpoint: str) -> str:
    """Return the URL for spans: an address without a path gets the protocol's."""
    parts = urlsplit(endpoint)
    return endpoint if parts.path.strip("/") else urlunsplit(parts._replace(path="/v1/traces"))


def check_tracing(settings: ServerSettings) -> None:
    """Check that the SDK is installed, and load nothing: other processes open it. Raises SettingsError."""
    if settings.otlp_traces_endpoint is not None and not all(map(_is_installed, _NEEDED)):
        raise SettingsError(
            "--otlp-traces-endpoint needs OpenTelemetry's SDK and its exporter, which are not installed; "
            f"{pip_install('otel')}, or leave it out."
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there
        return False


async def close_tracer(tracer: Tracer | None) -> None:
    if tracer is not None:
        await asyncio.to_thread(tracer.close)
