"""Fields of /v1/messages as those of chat: what is honoured, and refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from inflight.server.anthropic.messages.conversation import prompt_of, to_chat
from inflight.server.anthropic.messages.schema import COUNT_TOKENS, MESSAGES
from inflight.server.common.conversation import ChatBody
from inflight.server.errors import ApiError

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}


def asked(**fields: Any) -> ChatBody:
    return to_chat(MESSAGES.decode(json.dumps({"messages": HI, "max_tokens": 9, **fields}).encode()))


def test_settings_reach_chat_under_its_names() -> None:
    body = asked(
        model="m",
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["."],
        metadata={"user_id": "me"},
        service_tier="standard_only",
        seed=1,
        cache_control={"type": "ephemeral"},
        speed="standard",
    )
    assert (body.model, body.stream, body.max_tokens, body.seed) == ("m", True, 9, 1)
    assert (body.temperature, body.top_p, body.top_k, body.stop) == (0.5, 0.9, 7, ["."])
    assert (body.user, body.service_tier, body.continue_final_message) == ("me", "default", None)


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, "auto", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", None),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, None),
    ],
)
def test_tools_and_which_may_be_called(choice: Any, expected: Any, parallel: bool | None) -> None:
    body = asked(tools=[TOOL, {**TOOL, "name": "time", "type": "custom", "strict": True}], tool_choice=choice)
    assert [(one.function.name, one.function.strict) for one in body.tools or ()] == [("weather", None), ("time", True)]
    assert body.tools is not None and body.tools[0].function.parameters == SCHEMA
    assert msgspec.to_builtins(body.tool_choice) == expected and body.parallel_tool_calls is parallel


def test_thinking_reaches_the_template_and_is_bounded() -> None:
    assert asked().chat_template_kwargs is None and asked().thinking_token_budget is None
    enabled = asked(thinking={"type": "enabled", "budget_tokens": 5})
    assert enabled.enable_thinking is True
    assert enabled.thinking_token_budget == 5 and enabled.include_reasoning is True
    adaptive = asked(thinking={"type": "adaptive", "display": "omitted"}, output_config={"effort": "low"})
    assert adaptive.thinking_token_budget is None and adaptive.include_reasoning is False
    assert adaptive.reasoning_effort == "low"
    disabled = asked(thinking={"type": "disabled"}, chat_template_kwargs={"thinking": 1, "other": 2})
    assert disabled.enable_thinking is False and disabled.chat_template_kwargs == {"thinking": 1, "other": 2}


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_the_form_of_the_answer_in_both_places(place: str) -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    body = asked(**{place: {"format": wanted} if place == "output_config" else wanted})
    assert msgspec.to_builtins(body.response_format)["json_schema"] == {
        "name": None,
        "description": None,
        "schema": SCHEMA,
        "strict": True,
    }


def test_an_answer_goes_on_with_the_assistants_last_words() -> None:
    assert asked(messages=[*HI, {"role": "assistant", "content": "So"}]).continue_final_message is True


def test_what_is_counted_is_the_prompt_of_the_same_call() -> None:
    whole = {
        "messages": HI,
        "system": "Be brief.",
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
        "max_tokens": 9,
        "temperature": 0.5,
        "stop_sequences": ["."],
    }
    counted = prompt_of(COUNT_TOKENS.decode(json.dumps(whole).encode()))
    called = asked(**whole)
    for name in ("messages", "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort"):
        assert msgspec.to_builtins(getattr(counted, name)) == msgspec.to_builtins(getattr(called, name))


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"max_tokens": None}, "max_tokens", "number"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens", "max_tokens is 9"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "between_tools"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences", "at 1"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0].type", "'web_search_20250305'"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema", "input_schema"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading", "shown"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers", "direct"),
        ({"tools": [{**TOOL, "input_examples": [{"city": "Bern"}]}]}, "tools[0].input_examples", "description"),
        ({"container": "c"}, "container", "nothing is run"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", "client"),
        ({"context_management": {"edits": [{"type": "compact"}]}}, "context_management", "compacted"),
        ({"inference_geo": "us"}, "inference_geo", "one location"),
        ({"speed": "fast"}, "speed", "one speed"),
        ({"stop": ["."]}, "stop", "stop_sequences"),
        ({"response_format": {"type": "text"}}, "response_format", "output_config.format"),
        ({"n": 2}, "n", "one message"),
        ({"output_config": {"verbosity": 1}}, "output_config.verbosity", "Unknown field"),
        ({"colour": 1}, "colour", "Unknown field"),
        (
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "output_format",
            "both",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str, word: str) -> None:
    with pytest.raises(ApiError) as raised:
        asked(**fields)
    assert raised.value.status == 400 and raised.value.param == param and word in raised.value.message
