"""The reference of the HTTP API, read off the server's own OpenAPI document, which stands beside it as a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from inflight import __version__
from inflight.server.app import make_app
from inflight.server.jobs.attempts import Answer, InFlight
from inflight.server.jobs.folder import DataDirectory
from inflight.server.jobs.service import JobService
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenant, Tenants
from website.tables import cell, table

Document = dict[str, Any]  # as OpenAPI has it


class _NoAnswerer:
    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        raise NotImplementedError("nothing is asked while the document is made")


async def _no_metrics() -> tuple[bytes, str]:
    return b"", "text/plain"


def openapi_document() -> Document:
    """Return the document of a server with files, batch jobs and stored responses."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        jobs = JobService(
            DataDirectory(data),
            _NoAnswerer(),
            Tenants().named,
            concurrency=1,
            max_file_mb=1,
            max_stored_mb=1,
            max_stored_files=1,
        )
        service = Service(ServerSettings(data_dir=data, store_responses=True), lambda ended: None)
        document: Document = make_app(service, Tenants(), _no_metrics, __version__, jobs=jobs).openapi()
    return document


def api_page(document: Document) -> str:
    schemas = document["components"]["schemas"]
    parts = [
        "# HTTP API",
        "A running server shows this document at `/docs` and as `/openapi.json`; this is the "
        "[same file](openapi.json). What the endpoints do with requests: "
        "[HTTP reference](../serving-reference.md). Fields that are "
        "not listed here are named by an answer's error.",
    ]
    used: dict[str, None] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method, path, operation)
            used |= dict.fromkeys(_schemas_of(operation.get("requestBody", {})))
    parts += ["## Bodies"]
    for name in used:
        parts += _body(name, schemas[name])
    return "\n\n".join(parts) + "\n"


def _operation(method: str, path: str, operation: Document) -> list[str]:
    summary = operation.get("description") or operation.get("summary") or ""
    parts = [f"## {method.upper()} {cell(path)}", cell(" ".join(summary.split()))]
    if bodies := _schemas_of(operation.get("requestBody", {})):
        parts.append("Body: " + ", ".join(f"[{one}](#{one.lower()})" for one in bodies) + ".")
    if parameters := operation.get("parameters", []):
        rows = [
            [f"`{one['name']}`", one["in"], _kind(one["schema"]), cell(one.get("description", ""))]
            for one in parameters
        ]
        parts.append(table(["parameter", "in", "type", "meaning"], rows))
    statuses = [[f"`{status}`", cell(one.get("description", ""))] for status, one in operation["responses"].items()]
    return [*parts, table(["status", "answer"], statuses)]


def _schemas_of(body: Document) -> list[str]:
    """Names of the schemas that a body may be of."""
    found = []
    for content in body.get("content", {}).values():
        for one in (content["schema"], *content["schema"].get("anyOf", ())):
            if "$ref" in one:
                found.append(one["$ref"].rpartition("/")[2])
    return found


def _body(name: str, schema: Document) -> list[str]:
    required = set(schema.get("required", ()))
    rows = [
        [f"`{field}`" + (" (needed)" if field in required else ""), _kind(one), cell(str(one.get("description", "")))]
        for field, one in schema.get("properties", {}).items()
    ]
    words = cell(" ".join(str(schema.get("description", "")).split()))
    return [f"### {name}", *([words] if words else []), *([table(["field", "type", "meaning"], rows)] if rows else [])]


def _kind(schema: Document) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return cell(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return cell(", ".join(str(one) for one in schema["enum"]))
    if "anyOf" in schema:
        return cell(" or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"])))
    kind = str(schema.get("type", "any"))
    return cell(f"{kind} of {_kind(schema['items'])}" if kind == "array" and "items" in schema else kind)
