"""Requests made from the server's own OpenAPI document: nothing breaks it, and it answers as the document says."""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from drawn import examples
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from inflight.server.app import BODIES, make_app
from inflight.server.common.bodies import UnknownFieldPolicy
from inflight.server.ingress.guard import CREDENTIALS
from inflight.server.jobs.attempts import Answer, InFlight
from inflight.server.jobs.folder import DataDirectory
from inflight.server.jobs.service import JobService
from inflight.server.registry import ENDPOINTS, OF_LINES
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
    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        raise NotImplementedError


folder = Path(tempfile.mkdtemp())
limits: dict[str, Any] = {"concurrency": 1, "max_file_mb": 1, "max_stored_mb": 1, "max_stored_files": 1}
jobs = JobService(DataDirectory(folder), NoAnswerer(), Tenants().named, **limits)
storing = ServerSettings(data_dir=folder, store_responses=True)
app = make_app(Service(storing, lambda ended: None), Tenants(), no_metrics, "0", jobs=jobs)
# What breaks a bound may break the bound of bodies, too, which is reported first: 413.
refused = {"expected-statuses": [400, 401, 403, 404, 405, 413, 429, "5xx"]}
# Thousands of cases that are made beforehand, by every worker.
every_case = {"coverage": {"enabled": settings.default.max_examples > 100}}  # with ./check --all
config = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": refused}, "phases": every_case})
schema = schemathesis.openapi.from_dict(app.openapi(), config=config)
schema = schema.exclude(path=["/api/pull", "/api/delete"])  # which would change this machine's caches


@schema.parametrize()
@settings(examples(40), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_answers_as_documented(case: schemathesis.Case, server: Server) -> None:
    case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)


def test_the_server_shows_this_document(server: Server) -> None:
    assert server.get("/openapi.json").json()["paths"].keys() >= app.openapi()["paths"].keys()
    assert server.get("/docs").status_code == 200


def test_the_document_is_made_when_it_is_asked_for_and_beside_the_event_loop() -> None:
    made_in: list[str] = []
    shown = {"info": {"title": "t", "version": "0", "description": ""}, "paths": {}, "components": {"schemas": {}}}

    def document() -> dict[str, Any]:
        made_in.append(threading.current_thread().name)
        return shown

    fresh = make_app(Service(ServerSettings(), lambda ended: None), Tenants(), no_metrics, "0")
    fresh.openapi = document  # type: ignore[method-assign]

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fresh), base_url="http://127.0.0.1") as client:
            assert not made_in
            assert (await client.get("/openapi.json")).json() == shown
            assert (await client.get("/docs")).status_code == 200

    asyncio.run(main())
    assert made_in[0].startswith("asyncio") and len(made_in) == 1


def test_the_page_needs_nothing_from_elsewhere_and_names_all_operations(server: Server) -> None:
    page = server.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text and "http://" not in page.text and "https://" not in page.text
    for path, operations in app.openapi()["paths"].items():
        assert f"<code>{path}</code>" in page.text
        assert all(f'id="{one["operationId"]}"' in page.text for one in operations.values())
    links = set(re.findall(r'href="#([^"]+)"', page.text))
    assert links and all(f'id="{one}"' in page.text for one in links)


def test_keys_are_asked_for_in_either_header_where_there_are_keys() -> None:
    keys = Tenants([(hashlib.sha256(b"sk").digest(), Tenant(name="one"))])
    asking = make_app(Service(ServerSettings(), lambda ended: None), keys, no_metrics, "0").openapi()
    schemes = asking["components"]["securitySchemes"]
    bearer, key = schemes["HTTPBearer"], schemes["APIKeyHeader"]
    assert (bearer["type"], bearer["scheme"]) == ("http", "bearer")
    assert (key["type"], key["in"], key["name"]) == ("apiKey", "header", CREDENTIALS[1].decode())
    either = [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    assert all(asking["paths"][one.path]["post"]["security"] == either for one in ENDPOINTS.values())
    assert "security" not in asking["paths"]["/health"]["get"] and "securitySchemes" not in app.openapi()["components"]


def test_wrong_parameters_are_400_in_the_document_as_they_are_in_life(server: Server) -> None:
    document = app.openapi()
    statuses = {status for path in document["paths"].values() for one in path.values() for status in one["responses"]}
    assert "422" not in statuses and "HTTPValidationError" not in document["components"]["schemas"]
    refused = server.get("/v1/files", params={"limit": "many"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "limit"


@pytest.mark.parametrize("policy", ["warn", "ignore", "refuse"])
def test_unknown_fields_are_in_the_document_what_they_are_in_life(policy: UnknownFieldPolicy) -> None:
    settings = ServerSettings(unknown_fields=policy)
    shown = make_app(Service(settings, lambda ended: None), Tenants(), no_metrics, "0").openapi()["components"][
        "schemas"
    ]
    for name in ("ResponsesBody", "ReasoningField", "ChatBody", "StreamOptions"):
        assert ("additionalProperties" in shown[name]) is (policy == "refuse")
    assert shown["LoadAdapterBody"]["additionalProperties"] is False, "operators' bodies are refused"


def test_the_type_of_a_block_may_be_left_out_where_only_texts_may_stand(server: Server) -> None:
    assert app.openapi()["components"]["schemas"]["OnlyTextBlock"]["required"] == ["text"]
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "system": [{"text": "Be brief."}]}
    assert server.post("/v1/messages", body).status_code == 200


def test_every_list_and_text_of_a_body_has_a_bound() -> None:
    schemas = app.openapi()["components"]["schemas"]
    unbounded = [path for body in BODIES for path in _unbounded(schemas, {"$ref": f"/{body.__name__}"}, body.__name__)]
    assert not unbounded


def _unbounded(schemas: dict[str, Any], schema: Any, path: str) -> list[str]:
    """Places of texts without maxLength and of lists without maxItems; a tool call and a template variable are JSON of
    any form, whose bound is the body's."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rsplit("/")[-1]]
    found = []
    if schema.get("type") == "string" and not {"maxLength", "enum"} & schema.keys():
        found.append(path)
    if schema.get("type") == "array" and "maxItems" not in schema:
        found.append(path)
    inside = {**schema.get("properties", {}), **{f"any{n}": one for n, one in enumerate(schema.get("anyOf", ()))}}
    if "items" in schema:
        inside["items"] = schema["items"]
    return found + [one for name, part in inside.items() for one in _unbounded(schemas, part, f"{path}.{name}")]


def test_every_endpoint_is_served_where_the_registry_says() -> None:
    paths = app.openapi()["paths"]
    for endpoint in ENDPOINTS.values():
        operation = paths[endpoint.path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert body.endswith(f"/{endpoint.body.kind.__name__}")
        assert operation.get("description") == endpoint.about
    lines = app.openapi()["components"]["schemas"]["Batch"]["properties"]["endpoint"]["enum"]
    assert lines == sorted(OF_LINES)
    assert {ENDPOINTS[name].path for name in ("completion", "chat", "responses", "messages")} < set(lines)
