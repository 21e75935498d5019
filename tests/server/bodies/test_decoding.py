"""Bodies: what passes, what is refused, and that the first mistake ends the reading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.server.bodies.chat import CHAT, ChatBody
from inflight.server.bodies.completions import COMPLETION
from inflight.server.bodies.decoding import LONGEST_SHOWN
from inflight.server.bodies.messages import MESSAGES
from inflight.server.bodies.responses import RESPONSES
from inflight.server.errors import ApiError

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


def refused(decoder: Any, body: bytes | dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as error:
        decoder.decode(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert error.value.status == 400 and error.value.message.endswith((".", "?"))
    return error.value


def test_null_is_not_set_in_every_field_but_the_prompt() -> None:
    names = [name for name in ChatBody.__struct_fields__ if name != "messages"]
    body = CHAT.decode(json.dumps({**HELLO, **dict.fromkeys(names)}).encode())
    assert all(getattr(body, name) is None for name in names)
    assert refused(CHAT, {"messages": None}).param == "messages"
    assert refused(COMPLETION, {"prompt": None}).param == "prompt"


@pytest.mark.parametrize("decoder", [RESPONSES, MESSAGES])
def test_where_a_prompt_lies_is_a_hint_to_endpoints_that_take_none_over(decoder: Any) -> None:
    """Those that do read it."""
    least = {"input": "x"} if decoder is RESPONSES else {**HELLO, "model": "m", "max_tokens": 1}
    decoder.decode(json.dumps(least | {"kv_transfer_params": {"do_remote_decode": True}}).encode())
    assert refused(CHAT, HELLO | {"kv_transfer_params": {"remote_port": "x"}}).param == "kv_transfer_params.remote_port"


@pytest.mark.parametrize(
    "more",
    [
        {"length_penalty": 1, "use_beam_search": False, "early_stopping": False},
        {"length_penalty": 1.0, "spaces_between_special_tokens": True, "logits_processors": []},
        {"echo": False, "no_stop_trim": False, "return_hidden_states": False},
        {"separate_reasoning": True, "stream_reasoning": True, "include_reasoning": True},
        {"metadata": {"a": "b"}, "store": True, "prompt_cache_key": "k", "verbosity": "low"},
        {"reasoning_effort": "high", "parallel_tool_calls": True, "tools": [], "tool_choice": "none"},
        {"kv_transfer_params": {"do_remote_decode": True}, "rid": "7", "data_parallel_rank": 3},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}},
        {"add_generation_prompt": True, "functions": None, "modalities": ["text"], "chat_template": None},
    ],
    ids=lambda more: "-".join(more)[:60],
)
def test_what_changes_no_token_passes(more: dict[str, Any]) -> None:
    CHAT.decode(json.dumps(HELLO | more).encode())


@pytest.mark.parametrize(
    ("decoder", "more", "param", "told"),
    [
        (CHAT, {"length_penalty": 2}, "length_penalty", "beam search"),
        (CHAT, {"use_beam_search": True}, "use_beam_search", "beam search"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools.0.function", "has no function"),
        (CHAT, {"echo": True}, "echo", "/v1/completions has echo"),
        (CHAT, {"best_of": 2}, "best_of", "use n"),
        (CHAT, {"separate_reasoning": False}, "separate_reasoning", "include_reasoning"),
        (CHAT, {"temprature": 1}, "temprature", "Did you mean 'temperature'?"),
        (CHAT, {"x" * 5000: 1}, "x" * (LONGEST_SHOWN - 1) + "…", "unknown"),
        (CHAT, {"temperature": "hot"}, "temperature", 'temperature is "hot"; give a number or null, not text'),
        (CHAT, {"temperature": 3}, "temperature", "temperature is 3; give a number <= 2.0"),
        (CHAT, {"n": True}, "n", "n is true; give a whole number or null, not true or false"),
        (CHAT, {"stop": ["x"] * 33}, "stop", "a list of at most 32 entries"),
        (CHAT, {"stop": "x" * 513}, "stop", "text of at most 512 characters"),
        (CHAT, {"logit_bias": {"1": 200}}, "logit_bias", "<= 100"),
        (CHAT, {"slo": {"ttft_ms": 0}}, "slo.ttft_ms", "> 0"),
        (CHAT, {"slo": {"ttft": 0}}, "slo.ttft", "unknown"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages.0.role", "has no role"),
        (CHAT, {"messages": [{"role": "boss"}]}, "messages.0.role", "'boss' is not known"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}, 5]}, "messages.1", "give an object"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "messages.0.content.1.type",
            "'image_url' is not known here; only text can be read",
        ),
        (COMPLETION, {"max_completion_tokens": 4}, "max_completion_tokens", "Did you mean 'max_tokens'?"),
        (COMPLETION, {"suffix": "x"}, "suffix", "fill gaps"),
        (COMPLETION, {"prompt": [1, -1]}, "prompt.1", ">= 0"),
        (COMPLETION, {"prompt": [1.5]}, "prompt.0", "a whole number or text or a list"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named(decoder: Any, more: dict[str, Any], param: str, told: str) -> None:
    error = refused(decoder, (HELLO if decoder is CHAT else {"prompt": "x"}) | more)
    assert error.param == param and told in error.message
    assert "Did you mean" not in error.message or param not in error.message.split("Did you mean")[1]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b"null", b'{"prompt": NaN}', b'{"prompt": "\xff"}', b'{"prompt": "x"}x', b"[" * 100_000],
    ids=repr,
)
def test_what_is_no_json_object(body: bytes) -> None:
    refused(COMPLETION, body)


def test_a_long_body_costs_no_more_than_its_first_mistake() -> None:
    """Each of these took seconds, and memory by the gigabyte, when every entry's mistake was written down."""
    for value in (b"-1," * 1_000_000 + b"1", b"{}," * 300_000 + b"1", b"1.5," * 300_000 + b"1"):
        assert refused(COMPLETION, b'{"prompt": [' + value + b"]}").param == "prompt.0"
        assert str(refused(CHAT, b'{"messages": [' + value + b"]}").param).startswith("messages.0")
        CHAT.decode(b'{"messages": [{"role": "user", "content": "x"}], "metadata": [' + value + b"]}")
