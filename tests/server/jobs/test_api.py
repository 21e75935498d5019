"""The Files and Batches API over HTTP: shapes, refusals, pages, limits, and tenants that see only their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.errors import ApiError
from inflight.server.openai.batches import batch_routes
from inflight.server.openai.files import file_routes
from inflight.server.openapi import openapi_document
from inflight.server.tenants import Tenant

from .rig import Rig, jsonl, live, request_line, until

LINES = jsonl(request_line("a", "1"), request_line("b", "2"))
BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}


class Asking:
    """Stands for the ingress: the tenant is whom a header names."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = Request(scope).headers.get("x-tenant", "acme")
        if name == "unknown":
            return await JSONResponse(ApiError(401, "Who are you? Say it.").body, 401)(scope, receive, send)
        scope.setdefault("state", {})["tenant"] = Tenant(name=name, max_batch_jobs=2)
        await self._app(scope, receive, send)


def application(rig: Rig) -> ASGIApp:
    app = Starlette(routes=[one.route for made in (file_routes, batch_routes) for one in made(rig.service).operations])

    def refuse(_: Request, error: Exception) -> JSONResponse:
        headers = getattr(error, "headers", None)
        if isinstance(error, HTTPException):
            error = ApiError(error.status_code, error.detail)
        assert isinstance(error, ApiError)
        return JSONResponse(error.body, error.status, headers)

    app.add_exception_handler(ApiError, refuse)
    app.add_exception_handler(HTTPException, refuse)
    return Asking(app)


class Client(httpx.AsyncClient):
    async def upload(self, content: bytes = LINES, name: str = "in.jsonl", **settings: Any) -> httpx.Response:
        settings = {"data": {"purpose": "batch"}, **settings}
        return await self.post("/v1/files", files={"file": (name, content)}, **settings)

    async def batch(self, file_id: str, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", None)
        body = json.dumps({"input_file_id": file_id, **BATCH, **fields})  # httpx itself cannot say a lone surrogate
        headers = {"content-type": "application/json", **(headers or {})}
        return await self.post("/v1/batches", content=body, headers=headers)


def over_http(folder: Path, test: Callable[[Client, Rig], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def whole(rig: Rig) -> None:
        async with Client(transport=httpx.ASGITransport(application(rig)), base_url="http://x") as client:
            await test(client, rig)

    live(folder, whole, **settings)


def refusal(response: httpx.Response, status: int, param: str | None = None) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), response.text
    return str(error["message"])


def test_a_batch_from_upload_to_output(tmp_path: Path) -> None:
    async def test(client: Client, rig: Rig) -> None:
        file = (await client.upload()).json()
        assert file == {
            "id": file["id"], "object": "file", "bytes": len(LINES), "created_at": 1_000_000, "filename": "in.jsonl",
            "purpose": "batch", "status": "processed",
        }  # fmt: skip
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        content = await client.get(f"/v1/files/{file['id']}/content")
        assert content.content == LINES and content.headers["content-type"] == "application/octet-stream"
        job = (await client.batch(file["id"], metadata={"k": "v"})).json()
        assert job["object"] == "batch" and job["metadata"] == {"k": "v"} and job["errors"] is job["paused"] is None
        while (job := (await client.get(f"/v1/batches/{job['id']}")).json())["status"] != "completed":
            await asyncio.sleep(0.005)
        assert job["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        output = (await client.get(f"/v1/files/{job['output_file_id']}")).json()
        assert output["purpose"] == "batch_output" and output["filename"] == f"{job['id']}_output.jsonl"
        text = (await client.get(f"/v1/files/{output['id']}/content")).text
        assert text.count("\n") == 2 and '"custom_id":"a"' in text
        refusal(await client.post(f"/v1/batches/{job['id']}/cancel"), 409)
        for file_id in (file["id"], output["id"]):
            deleted = (await client.delete(f"/v1/files/{file_id}")).json()
            assert deleted == {"id": file_id, "object": "file", "deleted": True}
            refusal(await client.get(f"/v1/files/{file_id}/content"), 404)
        assert not any((tmp_path / "files").iterdir())

    over_http(tmp_path, test)


def test_what_fails_validation_says_why(tmp_path: Path) -> None:
    async def test(client: Client, rig: Rig) -> None:
        job = (await client.batch((await client.upload(b"\n")).json()["id"])).json()
        while (job := (await client.get(f"/v1/batches/{job['id']}")).json())["status"] != "failed":
            await asyncio.sleep(0.005)
        assert job["errors"] == {
            "object": "list",
            "data": [
                {
                    "code": "empty_file",
                    "message": "The input file holds no line; give one request a line.",
                    "param": None,
                    "line": None,
                }
            ],
        }

    over_http(tmp_path, test)


def test_tenants_see_only_their_own(tmp_path: Path) -> None:
    async def test(client: Client, rig: Rig) -> None:
        file_id = (await client.upload()).json()["id"]
        job_id = (await client.batch(file_id)).json()["id"]
        other = {"x-tenant": "other"}
        for method, path in (
            ("GET", f"/v1/files/{file_id}"), ("GET", f"/v1/files/{file_id}/content"),
            ("DELETE", f"/v1/files/{file_id}"), ("GET", f"/v1/batches/{job_id}"),
            ("POST", f"/v1/batches/{job_id}/cancel"),
        ):  # fmt: skip
            theirs = await client.request(method, path, headers=other)
            unknown = await client.request(method, path.replace("_", "_0").replace("file-", "file-0"), headers=other)
            assert refusal(theirs, 404).replace(file_id, "").replace(job_id, "") == refusal(unknown, 404).replace(
                file_id.replace("-", "-0"), ""
            ).replace(job_id.replace("_", "_0"), "")
        refusal(await client.batch(file_id, headers=other), 404, "input_file_id")
        for path in ("/v1/files", "/v1/batches"):
            empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
            assert (await client.get(path, headers=other)).json() == empty
            refusal(await client.get(path, headers=other, params={"after": file_id}), 404, "after")
            refusal(await client.get(path, headers={"x-tenant": "unknown"}), 401)

    over_http(tmp_path, test)


def test_pages(tmp_path: Path) -> None:
    async def test(client: Client, rig: Rig) -> None:
        ids = [(await client.upload(name=f"{number}")).json()["id"] for number in range(5)]
        first = (await client.get("/v1/files", params={"limit": 2})).json()
        assert [one["id"] for one in first["data"]] == [ids[4], ids[3]] and first["has_more"]
        assert (first["first_id"], first["last_id"]) == (ids[4], ids[3])
        rest = (await client.get("/v1/files", params={"limit": 3, "after": ids[3]})).json()
        assert [one["id"] for one in rest["data"]] == ids[2::-1] and not rest["has_more"]
        rising = (await client.get("/v1/files", params={"order": "asc", "after": ids[1], "limit": 1})).json()
        assert [one["id"] for one in rising["data"]] == [ids[2]]
        assert (await client.get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []
        jobs = [(await client.batch(one, headers={})).json()["id"] for one in ids[:2]]
        listed = (await client.get("/v1/batches", params={"limit": 1})).json()
        assert [one["id"] for one in listed["data"]] == [jobs[1]] and listed["has_more"]
        listed = (await client.get("/v1/batches", params={"after": jobs[1]})).json()
        assert [one["id"] for one in listed["data"]] == [jobs[0]] and not listed["has_more"]
        for path, limit in (("/v1/files", 10_001), ("/v1/batches", 101), ("/v1/files", 0), ("/v1/batches", "x")):
            refusal(await client.get(path, params={"limit": limit}), 400, "limit")

    over_http(tmp_path, test)


def test_jobs_of_a_tenant_are_limited(tmp_path: Path) -> None:
    async def test(client: Client, rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        file_id = (await client.upload()).json()["id"]
        jobs = [(await client.batch(file_id)).json()["id"] for _ in range(2)]
        assert "2 batch jobs have not ended" in refusal(await client.batch(file_id), 429)
        assert "has not ended" in refusal(await client.delete(f"/v1/files/{file_id}"), 409)
        assert (await client.post(f"/v1/batches/{jobs[0]}/cancel")).json()["status"] in ("cancelling", "cancelled")
        rig.answerer.gate.set()
        for job_id in jobs:
            while (await client.get(f"/v1/batches/{job_id}")).json()["status"] not in ("cancelled", "completed"):
                await asyncio.sleep(0.005)
        assert (await client.batch(file_id)).status_code == 200

    over_http(tmp_path, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/edits"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
        ({"input_file_id": ""}, "input_file_id"),
        ({"input_file_id": "\ud800"}, "input_file_id"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"metadata": {"k": "\ud800"}}, "metadata"),
        ({"output_expires_after": {}}, "output_expires_after"),
    ],
)
def test_bodies_that_are_refused(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    async def test(client: Client, rig: Rig) -> None:
        refusal(await client.batch("file-x", **fields), 400, param)
        refusal(await client.batch("file-x"), 404, "input_file_id")

    over_http(tmp_path, test)


def form(*parts: tuple[str, bytes]) -> dict[str, Any]:
    """A form written by hand: what stands behind Content-Disposition, and the content."""
    body = b"".join(
        b"--B\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), data) for head, data in parts
    )
    return {"content": body + b"--B--\r\n", "headers": {"content-type": "multipart/form-data; boundary=B"}}


FILE, PURPOSE = ('name="file"; filename="f"', LINES), ('name="purpose"', b"batch")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"content": b"x", "headers": {"content-type": "application/json"}}, None),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, None),
        ({"content": b"", "headers": {"content-type": "multipart/form-data; boundary="}}, None),
        ({"content": b"", "headers": {"content-type": f"multipart/form-data; boundary={'B' * 257}"}}, None),
        ({"content": b"", "headers": {"content-type": f"multipart/form-data; boundary={'B' * 60_000}"}}, None),
        ({"content": b"", "headers": {"content-type": 'multipart/form-data; boundary="B{}"'}}, None),
        ({"content": b"", "headers": {"content-type": b"multipart/form-data; boundary=B\xff"}}, None),
        ({"content": b"", "headers": {"content-type": 'multipart/form-data; boundary="B "'}}, None),
        ({**form(FILE, PURPOSE), "content": b"rubbish"}, None),
        ({**form(FILE, PURPOSE), "content": b""}, "file"),
        (form(FILE), "purpose"),
        (form(PURPOSE), "file"),
        (form(FILE, FILE, PURPOSE), "file"),
        (form(FILE, PURPOSE, PURPOSE), "purpose"),
        (form(FILE, ('name="purpose"', b"fine-tune")), "purpose"),
        (form(FILE, ('name="purpose"', b"x" * 5000)), "purpose"),
        (form(FILE, PURPOSE, ('name="expires_after[seconds]"', b"1")), "expires_after[seconds]"),
        (form(('name="file"', LINES), PURPOSE), "file"),
        (form(('name="file"; filename=""', LINES), PURPOSE), "file"),
        (form(('name="file"; filename="f"', b""), PURPOSE), "file"),
        ({**form(FILE, PURPOSE), "content": form(FILE, PURPOSE)["content"][:-30]}, "file"),
        ({**form(PURPOSE, FILE), "content": form(PURPOSE, FILE)["content"][:-40]}, "file"),
    ],
)
def test_uploads_that_are_refused_leave_nothing(tmp_path: Path, request_: dict[str, Any], param: str | None) -> None:
    async def test(client: Client, rig: Rig) -> None:
        refusal(await client.post("/v1/files", **request_), 400, param)
        assert not any((tmp_path / "files").iterdir()) and not any((tmp_path / "partial").iterdir())
        assert (await client.get("/v1/files")).json()["data"] == []

    over_http(tmp_path, test)


def test_large_uploads_are_stopped_on_the_way(tmp_path: Path) -> None:
    async def test(client: Client, rig: Rig) -> None:
        limit = 3 * 2**20
        exact = (await client.upload(b"x" * limit)).json()
        assert exact["bytes"] == limit
        assert "larger than 3 MiB" in refusal(await client.upload(b"x" * (limit + 1)), 413, "file")
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            yield form(FILE)["content"].removesuffix(b"\r\n--B--\r\n")
            while sent < 100 * 2**20:
                sent += 2**16
                yield b"x" * 2**16

        said = await client.post("/v1/files", content=endless(), headers=form()["headers"])
        refusal(said, 413, "file")
        assert sent < 6 * 2**20
        assert [path.name for path in (tmp_path / "files").iterdir()] == [exact["id"]]

    over_http(tmp_path, test, max_file_mb=3)


def test_a_client_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        messages = [
            {"type": "http.request", "body": form(FILE)["content"][:60], "more_body": True},
            {"type": "http.disconnect"},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", form()["headers"]["content-type"].encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b"", "headers": headers}
        await application(rig)(scope, receive, send)
        assert sent[0]["status"] == 400
        assert not any((tmp_path / "files").iterdir())

    live(tmp_path, test)


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "a\\b", "ä\u202e.jsonl", "x" * 300, "; rm"])
def test_names_are_shown_and_never_used(tmp_path: Path, name: str) -> None:
    async def test(client: Client, rig: Rig) -> None:
        file = (await client.upload(name=name)).json()
        assert file["filename"][:3] == name[:3] and len(file["filename"]) <= 255
        assert [path.name for path in (tmp_path / "data" / "files").iterdir()] == [file["id"]]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
        content = await client.get(f"/v1/files/{file['id']}/content")
        assert content.headers["content-disposition"] == f'attachment; filename="{file["id"]}.jsonl"'

    over_http(tmp_path / "data", test)


def test_a_deleted_file_can_be_read_to_its_end(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        file = await rig.upload(LINES)
        _, content = await rig.files.open(Tenant(), file.id)
        await rig.files.delete(Tenant(), file.id)
        with content:
            assert content.read() == LINES
        await until(lambda: not any((tmp_path / "files").iterdir()))

    live(tmp_path, test)


def test_the_document_shows_every_refusal(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        operations = [*file_routes(rig.service).operations, *batch_routes(rig.service).operations]
        paths = openapi_document(operations, {}, needs_keys=False)["paths"]
        shown = {
            (path, method): set(operation["responses"])
            for path, one in paths.items()
            for method, operation in one.items()
        }
        assert {"200", "400", "401", "413"} <= shown["/v1/files", "post"]
        assert {"404", "409"} <= shown["/v1/files/{file_id}", "delete"]
        assert {"404", "409"} <= shown["/v1/batches/{batch_id}/cancel", "post"]
        assert {"400", "404", "429"} <= shown["/v1/batches", "post"]
        form = paths["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert form["required"] == ["file", "purpose"] and form["properties"]["file"]["format"] == "binary"

    live(tmp_path, test)
