"""The page that says how to add an endpoint: its file works as it stands there, with an entry and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from inflight.build import BUILT_IN
from inflight.frontend.prompts import PromptEncoder
from inflight.server.app import make_app
from inflight.server.common.prepared import Limits
from inflight.server.preprocessing.worker import Preprocessor
from inflight.server.registry import ENDPOINTS
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.text import ChatTemplate, Tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "add-an-endpoint.md"
PATH = "/v1/echo-tokens"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the page's endpoint to the registry."""
    source = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    module = ModuleType("echo_tokens")
    monkeypatch.setitem(sys.modules, "echo_tokens", module)  # where structs look for the types of their fields
    exec(compile(source, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(ENDPOINTS, "echo_tokens", module.ECHO_ENDPOINT)


def application() -> Any:
    tokenizer = Tokenizer.load(BUILT_IN)
    encoder = PromptEncoder(tokenizer, ChatTemplate.load(BUILT_IN), 0)
    preprocessor = Preprocessor(encoder, tokenizer, Limits())

    async def prepare(name: str, body: bytes, owner: str) -> Any:
        return preprocessor.prepared(name, body)

    served = SimpleNamespace(bridge=SimpleNamespace(stopped=None), preprocessing=SimpleNamespace(prepare=prepare))
    service = Service(ServerSettings(), lambda _: None)
    service.ready(OneModel(cast(Any, served)))
    return make_app(service, Tenants([]), cast(Any, None), "0")


def test_the_endpoint_of_the_page_is_served_and_documented(added: None) -> None:
    async def main() -> None:
        app = application()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            answer = await client.post(PATH, json={"text": "hello"})
            assert answer.json() == {"tokens": Tokenizer.load(BUILT_IN).encode("hello", add_special_tokens=False)}
            for body, param in (({}, "text"), ({"text": ""}, "text"), ({"text": "x", "model": 5}, "model")):
                refused = await client.post(PATH, json=body)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
            operation = (await client.get("/openapi.json")).json()["paths"][PATH]["post"]
            assert operation["operationId"] == "echo_tokens_v1_echo_tokens_post"
            assert json.dumps(operation["responses"]["200"]).count("EchoedTokens") == 1
            assert PATH in (await client.get("/docs")).text

    asyncio.run(main())
