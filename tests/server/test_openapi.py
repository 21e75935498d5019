"""Requests made from the server's own OpenAPI document: nothing breaks it, and it answers as the document says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from inflight.server.app import make_app
from inflight.server.batch.answering import Answer
from inflight.server.batch.service import BatchService
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant, Tenants

from .conftest import Server

CHECKS = (
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)


async def no_metrics() -> tuple[bytes, str]:
    return b"", "text/plain"


class NoAnswerer:
    async def answer(self, url: str, body: dict[str, Any], tenant: Tenant, request_id: str) -> Answer:
        raise NotImplementedError


jobs = BatchService(Path(tempfile.mkdtemp()), NoAnswerer(), Tenants().named)
app = make_app(Service(ServerSettings(), lambda ended: None), Tenants(), no_metrics, "0", jobs=jobs)
schema = schemathesis.openapi.from_dict(app.openapi())


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_answers_as_documented(case: schemathesis.Case, server: Server) -> None:
    case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)


def test_the_server_shows_this_document(server: Server) -> None:
    assert server.get("/openapi.json").json()["paths"].keys() >= app.openapi()["paths"].keys()
    assert server.get("/docs").status_code == 200
