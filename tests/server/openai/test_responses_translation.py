"""Fields of /v1/responses as those of chat: what is honoured, echoed, and refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from inflight.server.errors import ApiError
from inflight.server.openai.responses.schema import LOGPROBS, RESPONSES
from inflight.server.openai.responses.translation import Translated, translated

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": SCHEMA, "strict": True}


def asked(**fields: Any) -> Translated:
    return translated(RESPONSES.decode(json.dumps({"input": "Hi", **fields}).encode()))


def test_tools_and_who_may_call_them() -> None:
    other = {**TOOL, "name": "time", "strict": None}
    body = asked(tools=[TOOL, other], tool_choice={"type": "function", "name": "time"}, parallel_tool_calls=False).body
    assert [one.function.name for one in body.tools or ()] == ["weather", "time"]
    assert [one.function.strict for one in body.tools or ()] == [True, None]
    assert msgspec.to_builtins(body.tool_choice) == {"type": "function", "function": {"name": "time"}}
    assert body.parallel_tool_calls is False
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    assert msgspec.to_builtins(asked(tools=[TOOL], tool_choice=allowed).body.tool_choice) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
    }


def test_the_form_of_the_answer() -> None:
    assert asked(text={"format": {"type": "text"}, "verbosity": "low"}).body.response_format is None
    assert msgspec.to_builtins(asked(text={"format": {"type": "json_object"}}).body.response_format) == {
        "type": "json_object"
    }
    found = asked(text={"format": {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}}).body
    inside = msgspec.to_builtins(found.response_format)["json_schema"]
    assert inside["schema"] == SCHEMA and inside["strict"] is True


def test_settings_reach_chat_under_its_names() -> None:
    body = asked(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low", "summary": "auto"},
        include=[LOGPROBS, "reasoning.encrypted_content"],
        top_logprobs=3,
        stop=["."],
        seed=1,
        user="me",
        safety_identifier="them",
        service_tier="flex",
        stream=True,
        stream_options={"include_obfuscation": False},
    ).body
    assert (body.max_completion_tokens, body.temperature, body.top_p, body.seed) == (7, 0.5, 0.9, 1)
    assert (body.reasoning_effort, body.logprobs, body.top_logprobs, body.stop) == ("low", True, 3, ["."])
    assert (body.user, body.safety_identifier, body.service_tier, body.stream) == ("me", "them", "flex", True)


def test_the_answer_repeats_what_it_was_asked() -> None:
    echoed = json.loads(
        asked(
            instructions="Be brief.",
            metadata={"job": "1"},
            tools=[TOOL],
            tool_choice="required",
            reasoning={"effort": "high"},
            text={"format": {"type": "json_object"}},
            truncation="auto",
            max_tool_calls=3,
            prompt_cache_key="k",
        ).echoed
    )
    assert echoed["tools"] == [TOOL] and echoed["tool_choice"] == "required"
    assert echoed["text"] == {"format": {"type": "json_object"}, "verbosity": "medium"}
    assert echoed["reasoning"] == {"effort": "high", "summary": None} and echoed["metadata"] == {"job": "1"}
    assert echoed["store"] is False and echoed["previous_response_id"] is None
    assert (echoed["instructions"], echoed["truncation"], echoed["max_tool_calls"]) == ("Be brief.", "auto", 3)
    assert json.loads(asked().echoed)["tools"] == []


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "--store-responses"),
        ({"store": True}, "store", "--store-responses"),
        ({"background": True}, "background", "batch job"),
        ({"conversation": "conv_1"}, "conversation", "not kept"),
        ({"prompt": {"id": "p"}}, "prompt", "send the text"),
        ({"include": ["file_search_call.results"]}, "include", "file_search_call.results"),
        ({"top_logprobs": 3}, "top_logprobs", LOGPROBS),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "unsummarized"),
        ({"reasoning": {"generate_summary": "concise"}}, "reasoning.generate_summary", "unsummarized"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context", "chat template"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "standard"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "'mcp'"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type", "'custom'"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading", "shown"),
        ({"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers", "direct"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "no name"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", "web_search_preview"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"messages": []}, "messages", "input"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"n": 2}, "n", "one response"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "schema"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str, word: str) -> None:
    with pytest.raises(ApiError) as raised:
        asked(**fields)
    assert raised.value.status == 400 and raised.value.param == param and word in raised.value.message


def test_values_that_mean_not_used_pass() -> None:
    asked(
        background=False,
        store=False,
        conversation=None,
        context_management=[],
        tools=[{**TOOL, "defer_loading": False}],
    )


CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'}
HISTORY = [{"type": "message", "role": "user", "content": "Weather?"}, {"id": "fc_1", **CALL}]


def gone_on(history: list[Any], **fields: Any) -> Translated:
    return translated(RESPONSES.decode(json.dumps({"input": "Hi", **fields}).encode()), json.dumps(history).encode())


def test_a_stored_conversation_comes_before_the_input_and_behind_the_instructions() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "Rain."}
    found = gone_on(HISTORY, input=[output], instructions="Be brief.", previous_response_id="resp_1")
    assert [one.role for one in found.body.messages] == ["system", "user", "assistant", "tool"]
    assert json.loads(found.stored_items) == [*HISTORY, {**output, "status": "completed"}], "without the instructions"
    echoed = json.loads(found.echoed)
    assert echoed["previous_response_id"] == "resp_1" and echoed["store"] is True


def test_what_is_not_to_be_stored_is_not_kept() -> None:
    assert gone_on([]).stored_items and json.loads(gone_on([]).echoed)["store"] is True
    unstored = gone_on(HISTORY, store=False)
    assert not unstored.stored_items and json.loads(unstored.echoed)["store"] is False
    assert not asked().stored_items


def test_stored_items_read_as_what_they_came_as() -> None:
    given = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]},
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Rain."}]},
        {"role": "user", "content": "And now?"},
    ]
    found = gone_on([], input=given)
    again = gone_on(json.loads(found.stored_items), input=[])
    assert again.body.messages == found.body.messages and json.loads(again.stored_items) == json.loads(
        found.stored_items
    )


def test_a_stored_conversation_that_grows_too_long_is_refused() -> None:
    with pytest.raises(ApiError) as raised:
        gone_on(HISTORY[:1] * 4096)
    assert raised.value.param == "previous_response_id" and "4,097 items" in raised.value.message
