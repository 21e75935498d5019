"""/v1/completions/render and /v1/chat/completions/render: what a body becomes, as routers ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "What is a lane?"}]
# What vllm-router adds to the bodies that it passes on.
OF_ROUTERS = {"no_stop_trim": False, "ignore_eos": False, "skip_special_tokens": True, "return_hidden_states": False}
OF_ROUTERS_BY_PATH: dict[str, dict[str, Any]] = {
    COMPLETIONS: {**OF_ROUTERS, "echo": False},
    CHAT: {
        **OF_ROUTERS,
        "logprobs": False,
        "continue_final_message": False,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "include_reasoning": True,
    },
}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": "word " * 4000}),
    (COMPLETIONS, {"prompt": [7] * 2000}),
    (COMPLETIONS, {"prompt": "Hi", "model": "another"}),
    (COMPLETIONS, {"prompt": "Hi", "temperature": -3}),
    (COMPLETIONS, {"prompt": "Hi", "n": 2, "best_of": 1}),
    (COMPLETIONS, {"prompt": "Hi", "min_tokens": 20}),
    (COMPLETIONS, {"prompt": ["Hi", 7]}),
    (COMPLETIONS, {"prompt": "Hi", "suffix": "unheard"}),
    (COMPLETIONS, {}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 1200}]}),
    (CHAT, {"messages": HI, "top_logprobs": 3}),
    (CHAT, {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 7}}}),
]


def test_a_completion_becomes_a_request_for_each_prompt(server: Server) -> None:
    prompts = ["A block is", "A lane is"]
    ask = {"prompt": prompts, "max_tokens": 7, "temperature": 0.5, "stop": "\n", "priority": 3, "cache_salt": "mine"}
    rendered = server.post(f"{COMPLETIONS}/render", ask)
    assert rendered.status_code == 200, rendered.text
    requests = rendered.json()
    assert [one["token_ids"] for one in requests] == [
        server.post("/tokenize", {"prompt": prompt}).json()["tokens"] for prompt in prompts
    ]
    for one in requests:
        assert one["request_id"].startswith("cmpl-") and one["model"] == "built-in"
        assert (one["priority"], one["cache_salt"], one["stream"], one["stream_options"]) == (3, "mine", False, None)
        rendered = one["sampling_params"]
        assert (rendered["max_tokens"], rendered["temperature"], rendered["stop"], rendered["n"]) == (7, 0.5, ["\n"], 1)
    assert requests[0]["request_id"] != requests[1]["request_id"]


def test_the_tokens_are_those_that_the_engine_gets(server: Server) -> None:
    for path, body in (
        (COMPLETIONS, {"prompt": "A block is", "add_special_tokens": True}),
        (COMPLETIONS, {"prompt": [7, 8, 9], "truncate_prompt_tokens": 2}),
        (CHAT, {"messages": HI}),
        (CHAT, {"messages": [*HI, {"role": "assistant", "content": "A"}], "continue_final_message": True}),
    ):
        rendered = server.post(f"{path}/render", body).json()
        rendered = rendered[0] if path == COMPLETIONS else rendered
        answer = server.post(path, {**body, "max_tokens": 1, "return_token_ids": True}).json()
        of_engine = answer["choices"][0]["prompt_token_ids"] if path == COMPLETIONS else answer["prompt_token_ids"]
        assert rendered["token_ids"] == of_engine


def test_what_is_left_out_is_reported_as_the_engine_takes_it(server: Server) -> None:
    chat = server.post(f"{CHAT}/render", {"messages": HI, "stream": True, "stream_options": {"include_usage": True}})
    rendered = chat.json()
    length = server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert rendered["sampling_params"]["max_tokens"] == length - len(rendered["token_ids"])
    assert rendered["stream"] and rendered["stream_options"]["include_usage"]
    assert rendered["sampling_params"]["seed"] is None
    assert server.post(f"{COMPLETIONS}/render", {"prompt": "Hi"}).json()[0]["sampling_params"]["max_tokens"] == 16


@pytest.mark.parametrize(("path", "body"), REFUSED, ids=str)
def test_what_is_refused_is_refused_in_the_same_words(server: Server, path: str, body: dict[str, Any]) -> None:
    rendered, real = server.post(f"{path}/render", body), server.post(path, body)
    assert (rendered.status_code, rendered.json()) == (real.status_code, real.json())
    assert real.status_code in (400, 404)


def test_fields_that_routers_add_change_nothing(server: Server) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "A block is"}), (CHAT, {"messages": HI})):
        plain = {**body, "max_tokens": 5, "temperature": 0}
        added = OF_ROUTERS_BY_PATH[path]
        alone, routed = server.post(path, plain), server.post(path, {**plain, **added})
        assert routed.status_code == 200, routed.text
        assert routed.json()["choices"] == alone.json()["choices"]
        assert server.post(f"{path}/render", {**plain, **added}).status_code == 200
