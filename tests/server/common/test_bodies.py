"""Bodies: what passes, what is refused, and that the first mistake ends the reading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.counted import LONGEST_SHOWN
from inflight.server.anthropic.messages.schema import MESSAGES
from inflight.server.common.bodies import MAX_NAMES, UnknownFields, nearest
from inflight.server.common.conversation import ChatBody
from inflight.server.errors import ApiError
from inflight.server.openai.chat import CHAT
from inflight.server.openai.completions import COMPLETION
from inflight.server.openai.responses.schema import RESPONSES

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
    """Return the decoders that read it."""
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
    ("decoder", "more", "param", "sentence"),
    [
        (CHAT, {"length_penalty": 2}, "length_penalty", "beam search"),
        (CHAT, {"use_beam_search": True}, "use_beam_search", "beam search"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function", "has no function"),
        (CHAT, {"echo": True}, "echo", "/v1/completions has echo"),
        (CHAT, {"best_of": 2}, "best_of", "use n"),
        (CHAT, {"separate_reasoning": False}, "separate_reasoning", "include_reasoning"),
        (CHAT, {"temprature": 1}, "temprature", "Did you mean 'temperature'?"),
        (CHAT, {"x" * 5000: 1}, "x" * (LONGEST_SHOWN - 1) + "…", "Unknown field"),
        (CHAT, {"temperature": "hot"}, "temperature", "temperature is 'hot'; give a number."),
        (CHAT, {"temperature": 2e6}, "temperature", "temperature is 2000000.0; give a number <= 1000000"),
        (CHAT, {"n": True}, "n", "n is true; give a whole number."),
        (CHAT, {"stop": ["x"] * 33}, "stop", "a list of at most 32 entries"),
        (CHAT, {"stop": "x" * 513}, "stop", "text of at most 512 characters"),
        (CHAT, {"logit_bias": {"1": 200}}, "logit_bias", "<= 100"),
        (CHAT, {"logit_bias": {"1" * 21: 1}}, "logit_bias", "A name in logit_bias: give text of at most 20 characters"),
        (CHAT, {"service_tier": "gold"}, "service_tier", "is 'gold'; it may be one of: auto, default, fast, flex"),
        (CHAT, {"response_format": {}}, "response_format", "has no type; give one"),
        (CHAT, {"slo": {"ttft_ms": 0}}, "slo.ttft_ms", "> 0"),
        (CHAT, {"slo": {"ttft": 0}}, "slo.ttft", "Unknown field"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role", "has no role"),
        (CHAT, {"messages": [{"role": "boss"}]}, "messages[0].role", "'boss'; it may be one of: assistant, developer"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}, 5]}, "messages[1]", "give an object"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
            "is 'image_url'; it may be one of: text, input_text, output_text, refusal; only text can be read",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": 5, "text": "a"}]}]},
            "messages[0].content[0].type",
            "type is 5; give text; only text can be read",
        ),
        (CHAT, {"think": 5}, "think", "give true or false"),
        (CHAT, {"options": {"temperature": "hot"}}, "options.temperature", "give a number"),
        (COMPLETION, {"repeat_penalty": "x"}, "repeat_penalty", "give a number"),
        (COMPLETION, {"suffix": 5}, "suffix", "give text"),
        (COMPLETION, {"prompt": [1, -1]}, "prompt[1]", ">= 0"),
        (COMPLETION, {"prompt": [1.5]}, "prompt[0]", "a whole number or text or a list"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named(decoder: Any, more: dict[str, Any], param: str, sentence: str) -> None:
    error = refused(decoder, (HELLO if decoder is CHAT else {"prompt": "x"}) | more)
    assert error.param == param and sentence in error.message
    assert "Did you mean" not in error.message or param not in error.message.split("Did you mean")[1]


CLIENTS: list[tuple[Any, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    # of clients of llama.cpp, Ollama, Mistral, DeepSeek and OpenRouter: the fields here, and what is ignored
    (
        CHAT,
        {"repeat_penalty": 1.2, "n_predict": 7, "id_slot": 0},
        {"repetition_penalty": 1.2, "max_tokens": 7},
        ("id_slot",),
    ),
    (CHAT, {"keep_alive": "5m", "mm_processor_kwargs": None, "cache_prompt": True}, {}, ("keep_alive", "cache_prompt")),
    (CHAT, {"think": False}, {"enable_thinking": False}, ()),
    (CHAT, {"think": "high"}, {"reasoning_effort": "high", "enable_thinking": None}, ()),
    (
        CHAT,
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        {"enable_thinking": True, "thinking_token_budget": 9},
        (),
    ),
    (CHAT, {"thinking": {"type": "disabled", "x": 1}}, {"enable_thinking": False}, ("thinking.x",)),
    (
        CHAT,
        {"reasoning": {"effort": "low", "exclude": True, "max_tokens": 5, "summary": "auto"}},
        {"reasoning_effort": "low", "include_reasoning": False, "thinking_token_budget": 5},
        ("reasoning.summary",),
    ),
    (
        CHAT,
        {"options": {"num_predict": -1, "temperature": 0.5, "top_k": 3, "seed": -1, "num_ctx": 4096, "stop": ["x"]}},
        {"max_tokens": None, "temperature": 0.5, "top_k": 3, "seed": None, "stop": ["x"]},
        ("options.num_ctx",),
    ),
    (CHAT, {"temperature": 0.1, "options": {"temperature": 0.5}}, {"temperature": 0.1}, ("options.temperature",)),
    (CHAT, {"stream_options": {"include_usage": True, "foo": 1}}, {}, ("stream_options.foo",)),
    (CHAT, {"random_seed": 4, "safe_prompt": False, "tool_choice": "any"}, {"seed": 4}, ("safe_prompt",)),
    (COMPLETION, {"max_completion_tokens": 4, "typical_p": 1.0}, {"max_tokens": 4}, ("typical_p",)),
    (COMPLETION, {"grammar": "root ::= x", "n_predict": -1}, {"guided_grammar": "root ::= x", "max_tokens": None}, ()),
    (CHAT, {"grammar": "", "json_schema": {}, "regex": "", "options": None, "think": None}, {"guided_regex": None}, ()),
    (CHAT, {"thinking": "low", "ebnf": "x"}, {"reasoning_effort": "low", "guided_grammar": "x"}, ()),
    (RESPONSES, {"think": "high"}, {"enable_thinking": None}, ("think",)),
    (RESPONSES, {"think": True, "n_predict": 3}, {"enable_thinking": True, "max_output_tokens": 3}, ()),
    (MESSAGES, {"repeat_penalty": 1.5, "top_a": 1}, {"repetition_penalty": 1.5}, ("top_a",)),
]
MIN_BODIES: dict[Any, dict[str, Any]] = {
    CHAT: HELLO,
    COMPLETION: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    MESSAGES: HELLO | {"max_tokens": 1},
}


@pytest.mark.parametrize(("decoder", "more", "fields", "ignored"), CLIENTS, ids=lambda value: str(value)[:40])
def test_fields_of_other_servers_are_mapped_or_ignored(
    decoder: Any, more: dict[str, Any], fields: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    body, unknown = json.dumps(MIN_BODIES[decoder] | more).encode(), UnknownFields()
    decoded = decoder.decode(body, unknown)
    assert {name: getattr(decoded, name) for name in fields} == fields
    assert unknown.names == ignored
    if ignored:
        assert refused(decoder, body).code == "unknown_field"


def test_nested_unknown_fields_are_left_out_and_nothing_else() -> None:
    functions = [
        {"type": "function", "function": {"name": f"f{i}", "x": i, "parameters": {"x": 1e2}}} for i in range(9)
    ]
    unknown = UnknownFields()
    tools = CHAT.decode(json.dumps(HELLO | {"tools": functions}).encode(), unknown).tools or []
    assert [one.function.parameters for one in tools] == [{"x": 100.0}] * 9
    assert unknown.names == ("tools[0].function.x",)
    long = [{"type": "function", "function": {"name": "f", "x": 1, "description": "d" * (1 << 20)}}]
    CHAT.decode(json.dumps(HELLO | {"tools": long}).encode(), UnknownFields())


def test_null_is_not_set_in_unknown_fields_too() -> None:
    CHAT.decode(json.dumps(HELLO | {"nothing": None, "slo": {"nothing": None}}).encode())


def test_names_of_ignored_fields_are_bounded() -> None:
    unknown = UnknownFields()
    CHAT.decode(json.dumps(HELLO | {f"f{i}" * 50: i for i in range(40)}).encode(), unknown)
    assert len(unknown.names) == MAX_NAMES + 1 and unknown.names[-1] == "24 more"
    assert max(map(len, unknown.names)) <= LONGEST_SHOWN
    many = {"slo": {f"f{i}": 1 for i in range(100)}}
    unknown = UnknownFields()
    CHAT.decode(json.dumps(HELLO | many).encode(), unknown)
    assert unknown.names[-1] == "84 more"
    deep = {"tools": [{"type": "function", "function": {"name": "f", f"x{i}": 1}} for i in range(40)]}
    with pytest.raises(ApiError, match="unknown fields in more than 32 objects"):
        CHAT.decode(json.dumps(HELLO | deep).encode(), UnknownFields())


@pytest.mark.parametrize(
    ("name", "meant"), [("temprature", "temperature"), ("top_q", "top_k"), ("think_", None), ("foo", None), ("m", None)]
)
def test_a_field_is_suggested_only_where_it_is_near(name: str, meant: str | None) -> None:
    found = nearest(name, ["temperature", "top_k", "n", "stop", "min_p"])
    assert found == meant


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
        assert refused(COMPLETION, b'{"prompt": [' + value + b"]}").param == "prompt[0]"
        assert str(refused(CHAT, b'{"messages": [' + value + b"]}").param).startswith("messages[0]")
        CHAT.decode(b'{"messages": [{"role": "user", "content": "x"}], "metadata": [' + value + b"]}")
