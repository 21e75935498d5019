"""The record that is downloaded while it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.types import Message

from inflight.server.live.routes import Live, live_routes
from inflight.server.tenants import ANYONE


def test_a_record_that_grows_is_sent_as_long_as_it_was(tmp_path: Path) -> None:
    record = tmp_path / "a record.jsonl"
    record.write_bytes(b"x" * 100_000)
    routes = live_routes(Live(cast(Any, None), record))
    app, sent = Starlette(routes=[one.route for one in routes.operations]), list[Any]()

    async def receive() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)
        with record.open("ab") as file:
            file.write(b"y" * 50_000)

    scope = {"type": "http", "method": "GET", "path": "/live/record", "headers": [], "query_string": b""}
    scope["state"] = {"tenant": ANYONE}
    asyncio.run(app(scope, receive, send))
    headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == 200 and headers[b"content-length"] == b"100000"
    assert headers[b"content-disposition"] == b"attachment; filename*=utf-8''a%20record.jsonl"
    assert b"".join(one["body"] for one in sent[1:]) == b"x" * 100_000
