"""Cases of vLLM's own tests of its API, restated by what they ask and expect; their names are vLLM's.

docs/results/vllm-api-cases.md lists all of vLLM's cases; those that other files here have already are named there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from .conftest import Server

Json = dict[str, Any]
MODEL = "built-in"
CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is a lane?"},
]
LANGUAGES = ["Python", "Java", "JavaScript", "C++", "C#", "PHP", "TypeScript", "Ruby", "Swift", "Kotlin"]
ADDRESS = r"((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)"
EMPLOYEE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "skills": {"type": "array", "items": {"type": "string", "maxLength": 10}, "minItems": 3, "maxItems": 4},
    },
    "required": ["name", "age", "skills"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "state": {"type": "string", "maxLength": 2},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "state", "unit"],
        },
    },
}
FORECAST = {"type": "function", "function": {**WEATHER["function"], "name": "get_forecast"}}  # type: ignore[dict-item]
NO_ARGUMENTS = {"type": "function", "function": {"name": "get_current_time", "parameters": {"type": "object"}}}


def ask(server: Server, path: str, **body: Any) -> Json:
    answer = server.post(path, {"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def chat(server: Server, **body: Any) -> Json:
    return ask(server, CHAT, **{"messages": MESSAGES, "max_completion_tokens": 10, "temperature": 0, **body})


def text(answer: Json) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def frames(server: Server, path: str, **body: Any) -> list[Json]:
    answer = server.post(path, {"model": MODEL, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# -- answers -----------------------------------------------------------------------------------------------------------


def no_logprobs_chat(server: Server) -> None:
    assert chat(server, logprobs=False)["choices"][0]["logprobs"] is None


def zero_logprobs_chat(server: Server) -> None:
    content = chat(server, logprobs=True, top_logprobs=0)["choices"][0]["logprobs"]["content"]
    assert content and all(one["top_logprobs"] == [] for one in content)


def some_logprobs_chat(server: Server) -> None:
    content = chat(server, logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    assert all(len(one["top_logprobs"]) == 5 for one in content)


def prompt_logprobs_chat(server: Server) -> None:
    assert len(chat(server, prompt_logprobs=0)["prompt_logprobs"]) > 0
    assert chat(server).get("prompt_logprobs") is None
    one, two = (chat(server, prompt_logprobs=count)["prompt_logprobs"] for count in (1, 2))
    assert max(map(len, filter(None, one))) <= 2 and max(map(len, filter(None, two))) in (2, 3)


def single_chat_session(server: Server) -> None:
    answer = chat(server, max_completion_tokens=5, logprobs=True, top_logprobs=5)
    (choice,), usage = answer["choices"], answer["usage"]
    assert choice["finish_reason"] == "length" and usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    turns = [*MESSAGES, choice["message"], {"role": "user", "content": "express your result in json"}]
    assert text(chat(server, messages=turns)) is not None


def chat_streaming(server: Server) -> None:
    received = frames(server, CHAT, messages=MESSAGES, max_completion_tokens=10, temperature=0)
    choices = [one["choices"][0] for one in received]
    assert sum(one["finish_reason"] is not None for one in choices) == 1 and choices[-1]["finish_reason"]
    assert "".join(one["delta"].get("content") or "" for one in choices) == text(chat(server))


def chat_completion_stream_options(server: Server) -> None:
    asked: Json = {"messages": MESSAGES, "max_completion_tokens": 10, "temperature": 0, "min_tokens": 10}
    assert all(one.get("usage") is None for one in frames(server, CHAT, **asked))
    *before, last = frames(server, CHAT, **asked, stream_options={"include_usage": True})
    assert all(one["usage"] is None for one in before) and last["choices"] == []
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [one["usage"]["completion_tokens"] for one in frames(server, CHAT, **asked, stream_options=options)]
    assert counts == sorted(counts) and counts[-1] == 10


def completion_stream_options(server: Server) -> None:
    asked: Json = {"prompt": "A lane", "max_tokens": 10, "temperature": 0, "ignore_eos": True}
    assert all(one.get("usage") is None for one in frames(server, COMPLETION, **asked))
    *_, last = frames(server, COMPLETION, **asked, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens"] == 10 and last["choices"] == []


def structured_outputs_choice_chat(server: Server) -> None:
    form = {"structured_outputs": {"choice": LANGUAGES}}
    assert text(chat(server, temperature=0.7, **form)) in LANGUAGES
    content = chat(server, logprobs=True, top_logprobs=5, **form)["choices"][0]["logprobs"]["content"]
    assert all(likely["logprob"] >= -9999 for one in content for likely in one["top_logprobs"])


def structured_outputs_json_chat(server: Server) -> None:
    out = text(chat(server, max_completion_tokens=300, structured_outputs={"json": EMPLOYEE}))
    jsonschema.validate(json.loads(out), EMPLOYEE)


def structured_outputs_regex_chat(server: Server) -> None:
    out = text(chat(server, max_completion_tokens=40, temperature=1, seed=1, structured_outputs={"regex": ADDRESS}))
    assert re.fullmatch(ADDRESS, out)


def response_format(server: Server) -> None:
    schema = {"type": "object", "properties": {"result": {"type": "integer", "maximum": 9}}, "required": ["result"]}
    form = {"type": "json_schema", "json_schema": {"name": "foo_test", "schema": schema}}
    jsonschema.validate(json.loads(text(chat(server, max_completion_tokens=60, response_format=form))), schema)
    assert text(chat(server, response_format={"type": "text"})) == text(chat(server))


def extra_fields_allowed(server: Server) -> None:
    said = [{**MESSAGES[1], "extra_field": "0"}]
    assert text(chat(server, messages=said)) == text(chat(server, messages=MESSAGES[1:]))


def complex_message_content(server: Server) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[1]["content"]}]}]
    assert text(chat(server, messages=parts)) == text(chat(server, messages=MESSAGES[1:]))


def chat_completion_n(server: Server) -> None:
    asked: Json = {"n": 3, "temperature": 1.5, "seed": 42, "max_completion_tokens": 30}
    choices = chat(server, **asked)["choices"]
    assert [one["index"] for one in choices] == [0, 1, 2] and all(one["message"]["content"] for one in choices)
    joined: Json = {}
    for frame in frames(server, CHAT, messages=MESSAGES, **asked):
        for one in frame["choices"]:
            joined[one["index"]] = joined.get(one["index"], "") + (one["delta"].get("content") or "")
    assert [joined[index] for index in range(3)] == [one["message"]["content"] for one in choices]
    assert len(chat(server)["choices"]) == 1


def continue_final_message(server: Server) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "A lane is"}]
    how = {"messages": turns, "add_generation_prompt": False, "continue_final_message": True}
    assert text(chat(server, **how)) != text(chat(server, messages=turns))


def function_tool_use(server: Server) -> None:
    asked: Json = {"tools": [WEATHER, FORECAST], "tool_choice": "required", "max_completion_tokens": 200}
    message = chat(server, **asked)["choices"][0]["message"]
    assert message["tool_calls"]
    for call in message["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])  # type: ignore[index]
        assert call["function"]["name"] in ("get_current_weather", "get_forecast") and call["id"]
    received = frames(server, CHAT, messages=MESSAGES, temperature=0, **asked)
    deltas = [call for one in received for call in one["choices"][0]["delta"].get("tool_calls") or ()]
    assert deltas and received[-1]["choices"][0]["finish_reason"] == "tool_calls"


def named_tool_use(server: Server) -> None:
    choice = {"type": "function", "function": {"name": "get_forecast"}}
    asked: Json = {"tools": [WEATHER, FORECAST], "tool_choice": choice, "max_completion_tokens": 200}
    (call,) = chat(server, **asked)["choices"][0]["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])  # type: ignore[index]
    received = frames(server, CHAT, messages=MESSAGES, temperature=0, **asked)
    calls = [call["function"] for one in received for call in one["choices"][0]["delta"].get("tool_calls") or ()]
    assert "".join(one.get("name") or "" for one in calls) == "get_forecast"
    assert "".join(one.get("arguments") or "" for one in calls) == call["function"]["arguments"]


def no_args_tool_call(server: Server) -> None:
    asked: Json = {"tools": [NO_ARGUMENTS], "tool_choice": "required", "max_completion_tokens": 300}
    message = chat(server, **asked)["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {}


def max_tokens_with_tool_choice_required(server: Server) -> None:
    answer = chat(server, tools=[WEATHER], tool_choice="required", max_completion_tokens=1)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 1


def chat_completion_without_tools(server: Server) -> None:
    """Also where `tools` is empty or `tool_choice` none: the answer has no `tool_calls`."""
    for fields in ({}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}):
        message = chat(server, **fields)["choices"][0]["message"]
        assert message["content"] and not message.get("tool_calls")


def response_format_with_tool_choice_required(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": EMPLOYEE}}
    asked: Json = {"tools": [WEATHER], "tool_choice": "required", "response_format": form}
    assert chat(server, max_completion_tokens=200, **asked)["choices"][0]["message"]["tool_calls"]


def parallel_tool_calls_false(server: Server) -> None:
    asked: Json = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    assert len(chat(server, max_completion_tokens=200, **asked)["choices"][0]["message"]["tool_calls"]) == 1


def single_completion(server: Server) -> None:
    answer = ask(server, COMPLETION, prompt="A lane is", max_tokens=5, temperature=0)
    (choice,), usage = answer["choices"], answer["usage"]
    assert choice["finish_reason"] == "length" and len(choice["text"]) >= 5
    assert usage == usage | {"completion_tokens": 5, "total_tokens": usage["prompt_tokens"] + 5}
    ids = ask(server, "/tokenize", prompt="A lane is", add_special_tokens=False)["tokens"]
    assert ask(server, COMPLETION, prompt=ids, max_tokens=5, temperature=0)["choices"][0]["text"] == choice["text"]


def completion_logprobs(server: Server) -> None:
    """no_logprobs, zero_logprobs, some_logprobs"""
    asked: Json = {"prompt": "A lane is", "max_tokens": 5, "temperature": 0}
    assert ask(server, COMPLETION, **asked)["choices"][0]["logprobs"] is None
    for count in (0, 5):
        found = ask(server, COMPLETION, **asked, logprobs=count)["choices"][0]["logprobs"]
        lengths = {len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        assert lengths == {5}
        assert all(max(count, 1) <= len(one) <= count + 1 for one in found["top_logprobs"])


def echo_logprob_completion(server: Server) -> None:
    asked: Json = {"prompt": "A lane is", "max_tokens": 5, "temperature": 0, "echo": True, "logprobs": 1}
    (choice,) = ask(server, COMPLETION, **asked)["choices"]
    assert choice["text"].startswith("A lane is")
    scored = choice["logprobs"]
    assert scored["top_logprobs"][0] is None and scored["token_logprobs"][0] is None
    assert len(scored["tokens"]) > 5


def parallel_and_batch_completions(server: Server) -> None:
    """parallel_no_streaming, parallel_streaming, batch_completions"""
    asked: Json = {"prompt": ["A lane is", "A lane is"], "max_tokens": 5, "temperature": 0}
    one, two = ask(server, COMPLETION, **asked)["choices"]
    assert one["text"] == two["text"] and [one["index"], two["index"]] == [0, 1]
    drawn = ask(server, COMPLETION, **{**asked, "temperature": 1.5, "n": 3, "seed": 3})["choices"]
    assert [choice["index"] for choice in drawn] == list(range(6))
    texts = ["", ""]
    for frame in frames(server, COMPLETION, **asked):
        for choice in frame["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [one["text"], two["text"]]


def return_token_ids(server: Server) -> None:
    asked: Json = {"prompt": "A lane 😊", "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    (choice,) = ask(server, COMPLETION, **asked)["choices"]
    ids = ask(server, "/tokenize", prompt="A lane 😊")["tokens"]
    assert len(choice["token_ids"]) == 5 and choice["prompt_token_ids"] == ids
    received = frames(server, COMPLETION, **asked)
    assert received[0]["choices"][0]["prompt_token_ids"] == ids
    assert [one for frame in received for one in frame["choices"][0].get("token_ids", ())] == choice["token_ids"]
    assert "token_ids" not in ask(server, COMPLETION, prompt="A", max_tokens=2)["choices"][0]


def return_tokens_as_token_ids(server: Server) -> None:
    asked: Json = {"prompt": "A lane", "max_tokens": 5, "temperature": 0, "logprobs": 1, "return_token_ids": True}
    (choice,) = ask(server, COMPLETION, **asked, return_tokens_as_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{one}" for one in choice["token_ids"]]
    answer = chat(server, logprobs=True, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["content"]
    assert all(one["token"].startswith("token_id:") for one in answer)


def tokenize_and_detokenize(server: Server) -> None:
    answer = ask(server, "/tokenize", prompt="vllm1 This is a test.", add_special_tokens=False)
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] > 0 and not answer.get("token_strs")
    assert ask(server, "/detokenize", tokens=answer["tokens"])["prompt"] == "vllm1 This is a test."
    named = ask(server, "/tokenize", prompt="A lane", return_token_strs=True)
    assert len(named["token_strs"]) == named["count"]
    plain, tools = (ask(server, "/tokenize", messages=MESSAGES, **given) for given in ({}, {"tools": [WEATHER]}))
    assert tools["count"] > plain["count"] == chat(server)["usage"]["prompt_tokens"]


def check_models(server: Server) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    assert (model["id"], model["root"], model["object"]) == (MODEL, MODEL, "model")


def health_and_version(server: Server) -> None:
    assert server.get("/health").status_code == 200 and server.get("/version").json()["version"]


def render(server: Server) -> None:
    (request,) = ask(server, "/v1/completions/render", prompt="A lane")
    assert request["token_ids"] == ask(server, "/tokenize", prompt="A lane")["tokens"]
    answer = ask(server, "/v1/chat/completions/render", messages=MESSAGES, temperature=0.5, max_completion_tokens=7)
    assert len(answer["token_ids"]) == chat(server)["usage"]["prompt_tokens"]
    assert (answer["sampling_params"]["temperature"], answer["sampling_params"]["max_tokens"]) == (0.5, 7)


def responses_simple(server: Server) -> None:
    """simple_input, instructions, chat, chat_with_input_type, max_tokens"""
    for given in ("What is a lane?", MESSAGES, [{"type": "message", **MESSAGES[1]}]):
        answer = ask(server, RESPONSES, input=given, temperature=0, max_output_tokens=10)
        assert answer["status"] == "incomplete" and answer["output"][0]["content"][0]["text"]
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    reply = ask(server, RESPONSES, input="Hi", instructions="Finish with QED.", max_output_tokens=5)
    assert reply["instructions"] == "Finish with QED."


def responses_stateful(server: Server) -> None:
    """store, previous_response_id, two_responses_with_same_prev_id"""
    first = ask(server, RESPONSES, input="What is a lane?", max_output_tokens=10)
    assert server.get(f"{RESPONSES}/{first['id']}").json() == first
    hidden = ask(server, RESPONSES, input="Hi", store=False, max_output_tokens=5)
    assert server.get(f"{RESPONSES}/{hidden['id']}").status_code == 404
    gone_on: Json = {"previous_response_id": first["id"], "temperature": 0, "max_output_tokens": 10}
    one, two = (ask(server, RESPONSES, input="And a block?", **gone_on)["output"] for _ in range(2))
    assert one[0]["content"] == two[0]["content"]


def responses_sampling(server: Server) -> None:
    """basic_sampling_params, extra_sampling_params, stop_string_conversion"""
    answer = ask(server, RESPONSES, input="Hi", temperature=0.5, top_p=0.9, max_output_tokens=10)
    assert (answer["temperature"], answer["top_p"], answer["max_output_tokens"]) == (0.5, 0.9, 10)
    extra: Json = {"repetition_penalty": 1.2, "seed": 42, "top_k": 1, "min_p": 0.1, "ignore_eos": True}
    assert ask(server, RESPONSES, input="Hi", max_output_tokens=10, **extra)["usage"]["output_tokens"] == 10
    whole = ask(server, RESPONSES, input="What is a lane?", temperature=0)["output"][0]["content"][0]["text"]
    word = whole.split()[2]
    cut = ask(server, RESPONSES, input="What is a lane?", temperature=0, stop=word)["output"][0]["content"][0]["text"]
    assert cut == whole[: whole.index(word)]


def responses_tools(server: Server) -> None:
    """function_tool_use, named_tool_use, function_calling_with_streaming_expected_arguments"""
    tool = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    for choice in ("required", {"type": "function", "name": "get_current_weather"}):
        asked: Json = {"input": "What is the weather?", "tools": [tool], "tool_choice": choice, "temperature": 0}
        (item,) = ask(server, RESPONSES, **asked)["output"][:1]
        assert item["type"] == "function_call" and item["name"] == "get_current_weather"
        jsonschema.validate(json.loads(item["arguments"]), tool["parameters"])
        result = [one for one in frames(server, RESPONSES, **asked) if one["type"].endswith("arguments.done")]
        assert result[0]["arguments"] == item["arguments"]


def bad_words_and_allowed_token_ids(server: Server) -> None:
    asked: Json = {"prompt": "A lane is", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    (choice,) = ask(server, COMPLETION, **asked)["choices"]
    word = max(choice["text"].split(), key=len)
    assert word not in ask(server, COMPLETION, **asked, bad_words=[word])["choices"][0]["text"]
    only = choice["token_ids"][1]
    answer = ask(server, COMPLETION, **asked, allowed_token_ids=[only], ignore_eos=True)["choices"][0]
    assert set(answer["token_ids"]) == {only}
    ended = ask(server, COMPLETION, **asked, stop_token_ids=[only])["choices"][0]
    assert ended["finish_reason"] == "stop" and ended["stop_reason"] == only


ANSWERED: tuple[Callable[[Server], None], ...] = (
    *(no_logprobs_chat, zero_logprobs_chat, some_logprobs_chat, prompt_logprobs_chat, single_chat_session),
    *(chat_streaming, chat_completion_stream_options, completion_stream_options, structured_outputs_choice_chat),
    *(structured_outputs_json_chat, structured_outputs_regex_chat, response_format, extra_fields_allowed),
    *(complex_message_content, chat_completion_n, continue_final_message),
    *(function_tool_use, named_tool_use, no_args_tool_call, max_tokens_with_tool_choice_required),
    *(chat_completion_without_tools, response_format_with_tool_choice_required, parallel_tool_calls_false),
    *(single_completion, completion_logprobs, echo_logprob_completion, parallel_and_batch_completions),
    *(return_token_ids, return_tokens_as_token_ids, tokenize_and_detokenize, check_models),
    *(health_and_version, render, responses_simple, responses_stateful),
    *(responses_sampling, responses_tools, bad_words_and_allowed_token_ids),
)


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: case.__name__)
def test_answered(server: Server, case: Callable[[Server], None]) -> None:
    case(server)
