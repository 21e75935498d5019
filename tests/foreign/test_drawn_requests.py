"""Requests that schemathesis draws from OpenAI's own OpenAPI document, one field at a time beside a body that is valid.

Each is answered as the document says, or refused with an error of the document's form that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from server.conftest import Server
from text_models import write_embedder

from .cases import KEY, MODEL, USER
from .documents import Judge, load
from .test_api_documents import completions, embeddings, openai

pytestmark = pytest.mark.foreign
CLIENT = "api_documents"
EMBEDDER = "embedder"
EXAMPLES = 12  # of each of some hundred fields

# By the schema of a body: where it goes, what the drawn field is added to, and the schema of the answer.
ROUTES: dict[str, tuple[str, dict[str, Any], str]] = {
    "CreateChatCompletionRequest": (
        "/v1/chat/completions",
        {"model": MODEL, "messages": [USER], "max_completion_tokens": 2},
        "CreateChatCompletionResponse",
    ),
    "CreateCompletionRequest": (
        "/v1/completions",
        {"model": MODEL, "prompt": "A block", "max_tokens": 2},
        "CreateCompletionResponse",
    ),
    "CreateResponse": (
        "/v1/responses",
        {"model": MODEL, "input": "A block", "max_output_tokens": 2},
        "Response",
    ),
    "CreateEmbeddingRequest": ("/v1/embeddings", {"model": EMBEDDER, "input": "A block"}, "CreateEmbeddingResponse"),
}
JUDGES = {"CreateCompletionRequest": completions, "CreateEmbeddingRequest": embeddings}


def fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of a body's fields, of all schemas that it is joined from."""
    schemas = load("openai")["components"]["schemas"]
    if "$ref" in schema:
        return fields(schemas[schema["$ref"].rpartition("/")[2]])
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        found = {**fields(part), **found}
    return found


@cache
def drawing() -> tuple[Any, dict[tuple[str, str], str]]:
    """Return a document with an operation for each field of each body, and their paths."""
    document = load("openai")
    paths: dict[tuple[str, str], str] = {}
    operations = {}
    for body in ROUTES:
        for name, schema in fields({"$ref": f"/{body}"}).items():
            only = {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}
            content = {"application/json": {"schema": only}}
            paths[body, name] = f"/{body}/{name}"
            operations[paths[body, name]] = {
                "post": {
                    "requestBody": {"required": True, "content": content},
                    "responses": {"200": {"description": ""}},
                }
            }
    return schemathesis.openapi.from_dict({**document, "paths": operations, "security": []}), paths


@pytest.fixture(scope="module")
def server(foreign_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URL of the server of each model."""
    folder: Path = write_embedder(tmp_path_factory.mktemp("embedder"))
    running = Server(str(folder), "--served-model-name", EMBEDDER, "--dtype", "float32", "--api-key", KEY).ready()
    yield {MODEL: foreign_server.url, EMBEDDER: running.url}
    assert running.stop() == 0, "".join(running.log)


def judged(judge: Judge, schema: str, answer: httpx.Response, field: str) -> None:
    if answer.status_code != 200:
        error = answer.json()["error"]
        judge.check("ErrorResponse", answer.json())
        assert 400 <= answer.status_code < 500, answer.text
        assert (error["param"] or "").startswith(field) or field in error["message"], answer.text
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert field == "stream", "nothing else asks for events"
    else:
        reply = answer.json()
        for vector in reply.get("data", ()):
            vector["embedding"] = [0.0] if isinstance(vector["embedding"], str) else vector["embedding"]
        judge.check(schema, reply)


@pytest.mark.parametrize("body", ROUTES)
def test_every_field_is_answered_or_refused_by_its_name(body: str, server: dict[str, str]) -> None:
    path, base, answered = ROUTES[body]
    judge = JUDGES.get(body, openai)()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    mistakes = {}
    with httpx.Client(base_url=server[base["model"]], headers=headers, timeout=60) as client:
        for field, cases in strategies(body).items():
            try:
                ask_all(
                    cases,
                    lambda drawn, field=field: judged(
                        judge, answered, client.post(path, content=json.dumps({**base, **drawn}).encode()), field
                    ),
                )
            except AssertionError as error:
                mistakes[field] = str(error)
    assert not mistakes


def strategies(body: str) -> dict[str, Any]:
    """Return what draws each field of a body."""
    schema, paths = drawing()
    return {field: schema[path]["POST"].as_strategy() for (kind, field), path in paths.items() if kind == body}


def ask_all(cases: Any, ask: Callable[[dict[str, Any]], None]) -> None:
    @given(cases)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(case: schemathesis.Case) -> None:
        ask(case.body)

    run()
