"""Answers and streamed events against the types of OpenAI's and Anthropic's newest clients: all that they require is
there, and no field is unknown to them but those that are named here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Server

from .cases import MODEL, SCRIPTED_MODEL, USER
from .environments import HERE, Environment
from .scripted import THINK_AND_CALL
from .test_api_documents import CITY, FLAT_TOOL, TOOL, ask, frames

pytestmark = pytest.mark.foreign
CLIENT = "openai_python"

PLAIN = {"model": MODEL, "messages": [USER], "temperature": 0, "max_completion_tokens": 6}
CALLING = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": THINK_AND_CALL}], "tools": [TOOL]}
RESPONDING = {"model": SCRIPTED_MODEL, "input": THINK_AND_CALL, "tools": [FLAT_TOOL]}
ANTHROPIC = {**CALLING, "max_tokens": 400, "tools": [{"name": "weather", "input_schema": CITY}]}
Case = tuple[str, str, dict[str, Any], str, str]  # client, path, body, type of the answer, type of an event
CASES: list[Case] = [
    *(
        ("openai_python", "/v1/chat/completions", body, f"{chat}:ChatCompletion", f"{chat}:ChatCompletionChunk")
        for chat in ["openai.types.chat"]
        for body in (PLAIN, {**PLAIN, "logprobs": True, "top_logprobs": 2}, CALLING)
    ),
    (
        *("openai_python", "/v1/completions", {"model": MODEL, "prompt": "A", "max_tokens": 4, "logprobs": 1}),
        *("openai.types:Completion", "openai.types:Completion"),
    ),
    *(
        ("openai_python", "/v1/responses", body, f"{module}:Response", f"{module}:ResponseStreamEvent")
        for module in ["openai.types.responses"]
        for body in ({"model": MODEL, "input": "A block"}, RESPONDING)
    ),
    *(
        ("anthropic", "/v1/messages", body, f"{module}:{prefix}Message", f"{module}:{prefix}RawMessageStreamEvent")
        for module, prefix in (("anthropic.types", ""), ("anthropic.types.beta", "Beta"))
        for body in ({"model": MODEL, "messages": [USER], "max_tokens": 6}, ANTHROPIC)
    ),
]
# vLLM's fields, the reasoning of chat, and fields of Open Responses; `name` of the end of a call's arguments is in
# OpenAI's document.
OURS = r"\.(stop_reason|reasoning|reasoning_content|service_tier|store|presence_penalty|frequency_penalty)$"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[3].partition(':')[2]}-{case[2]['model']}")
def test_types_know_every_field(case: Case, foreign_server: Server, scripted_server: Server, tmp_path: Path) -> None:
    client, path, body, answered, streamed = case
    server = foreign_server if body["model"] == MODEL else scripted_server
    values = [(answered, ask(server, path, body)), *((streamed, one) for one in frames(server, path, body))]
    if streamed.endswith(":Completion"):
        values = [(kind, with_an_end(value)) for kind, value in values]
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values), encoding="utf-8")
    said = Environment(client).make().run("python", str(HERE / "typed_values.py"), str(given))
    mistakes = [one for one in json.loads(said) if not re.search(OURS, one) and one != "ResponseStreamEvent.name"]
    assert not mistakes and len(values) > 1


def with_an_end(value: dict[str, Any]) -> dict[str, Any]:
    """Return a completion's frame with an end, as its type, which has no frames, wants it."""
    choices = [{**one, "finish_reason": one["finish_reason"] or "length"} for one in value["choices"]]
    return {**value, "choices": choices}
