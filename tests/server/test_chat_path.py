"""The path of a chat request: few files, which the page lists; what they import beside them is named here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import inflight

SERVER = Path(inflight.__file__).parent / "server"
PAGE = Path(__file__).parents[2] / "docs" / "serving-internals.md"
MAX_FILES, MAX_LINES = 15, 4100

# What files of the path import, and a plain request of a conversation is not passed through by.
BESIDE = {
    "registry": "a table of the endpoints",
    "errors": "refusals",
    "common/mistakes": "bodies that are wrong",
    "common/aliases": "other servers' names of fields",
    "common/tools": "calls of tools",
    "common/schemas": "bounds of JSON schemas",
    "common/logprobs": "log-probabilities",
    "common/endpoint": "what an API declares",
    "openai/completions": "an endpoint, of which short bodies are read in place",
    "openai/responses/store": "stored responses",
    "openai/responses/stored_input": "stored responses",
    "rendering": "an endpoint that shows the engine's requests",
    "asgi": "headers and JSON of any answer",
    "routes": "paths and queries",
    "settings": "options",
    "tenants": "keys",
    "router_hints": "headers of routers",
    "kv_peers": "other engines' keys and values",
    "parsers": "the choice of a model's parsers",
    "engine_description": "the engine, as it describes itself",
    "model_status": "several models",
    "call_counts": "calls in flight",
    "answer_memory": "memory of all answers",
    "ignored_field_log": "the log",
    "tracing/request_trace": "traces",
}


def listed() -> list[str]:
    """Files of the path, as the page has them."""
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index("A **chat request** passes") : page.index("**Preprocessing** is one pure function")]
    found = []
    for row in re.findall(r"^\| (`[^|]*\.py`) \|", table, re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([^`]+)\.py`", row):
            folder = name.rpartition("/")[0] if "/" in name else folder
            found.append(f"{folder}/{name.rpartition('/')[2]}".lstrip("/"))
    return found


def imported(name: str) -> set[str]:
    """Files of the server that a file imports, also within functions; not for its types alone."""
    tree = ast.parse((SERVER / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {
        one.removeprefix("inflight.server.").replace(".", "/") for one in modules if one.startswith("inflight.server.")
    }


def test_the_path_is_what_the_imports_lead_through() -> None:
    path, left, reached = set(listed()), ["endpoints", "openai/chat"], set[str]()
    while left:
        if (name := left.pop()) not in reached and name not in BESIDE:
            reached.add(name)
            left += imported(name)
    assert reached == path
    beside = {one for name in path for one in imported(name)} - path
    assert beside == set(BESIDE), "each with its reason"


def test_the_path_is_short() -> None:
    path = listed()
    lines = sum(len((SERVER / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in path)
    assert len(path) <= MAX_FILES and lines <= MAX_LINES, (len(path), lines)
