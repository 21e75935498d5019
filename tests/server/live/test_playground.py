"""The playground as the server gives it out: open to all, made of the page's files alone, and of no use without a key.
What it does in a browser: tests/foreign/test_playground.py."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx

from inflight.live.page_files import text_of
from inflight.server.app import make_app
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from server.conftest import Server


def test_it_is_given_out_with_the_policy_of_the_live_page(server: Server) -> None:
    answer = server.get("/playground")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    policies = [server.get(path).headers["content-security-policy"] for path in ("/", "/playground")]
    assert len({re.sub(r"'sha256-[^']+'", "", policy) for policy in policies}) == 1, "but for their styles"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_it_is_made_of_the_pages_own_files(server: Server) -> None:
    text = server.get("/playground").text
    parts = re.findall(r'(?:src|href)="(?!data:)([^"#]+)"', text)
    assert {part for part in parts if part.startswith("ui/")} == {"ui/playground.bundle.js"}, "and its styles are in it"
    for part in parts:
        assert not part.startswith(("http:", "https:", "//")), part
        assert server.get(f"/{part.removeprefix('./')}").status_code == 200, part
    assert "<script>" not in text and " style=" not in text and not re.search(r"\son\w+=", text)


def test_the_model_lists_its_lanes_and_where_a_priority_means_something(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    config = tmp_path / "lanes.toml"
    config.write_text('[lanes.vip]\npolicy = "priority"\nweight = 2\n', encoding="utf-8")
    lanes = start("--config", str(config)).get("/v1/models").json()["data"][0]["lanes"]
    assert [(one["name"], one["background"], one["takes_priority"]) for one in lanes] == [
        ("interactive", False, False),
        ("batch", True, False),
        ("vip", False, True),
    ]


def test_no_script_makes_markup_of_text() -> None:
    for name in (
        "account",
        "playground",
        "playground-api",
        "playground-answer",
        "playground-settings",
        "playground-tokens",
    ):
        script = text_of(f"{name}.js")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "localStorage",
            "XMLHttp",
        ):
            assert way not in script, (name, way)


def test_with_keys_the_page_is_there_and_what_it_asks_is_not(start: Callable[..., Server]) -> None:
    server = start("--api-key", "sk-secret")
    assert server.get("/playground").status_code == 200
    for answer in (server.get("/v1/models"), server.post("/v1/chat/completions", {"messages": []})):
        assert answer.status_code == 401
    assert server.get("/v1/models?key=sk-secret&api_key=sk-secret").status_code == 401, "no keys in addresses"


def test_it_is_there_where_no_live_page_is() -> None:
    """As with replicas."""
    app = make_app(Service(ServerSettings(), lambda ended: None), Tenants(), cast(Any, None), "0")

    async def statuses() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return [(await client.get(path)).status_code for path in ("/", "/playground", "/ui/playground.js")]

    assert asyncio.run(statuses()) == [307, 200, 200]


def test_without_pages_there_is_none(start: Callable[..., Server]) -> None:
    server = start("--no-ui")
    assert server.get("/playground").status_code == server.get("/ui/playground.js").status_code == 404
