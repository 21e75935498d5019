"""/v1/completions through OpenAI's own client, and what log-probability benchmarks ask of it."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest

from inflight import LLM, SamplingParams

from .conftest import Server

TEXT = "Continuous batching decides at every step"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(threads=1)


def token_ids(server: Server, text: str) -> list[int]:
    ids: list[int] = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    return ids


def test_prompts_in_every_form(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    ids = token_ids(server, TEXT)
    alone = llm.generate(TEXT, SamplingParams(temperature=0, max_tokens=12))[0].outputs[0].text
    forms: list[tuple[Any, int]] = [(TEXT, 1), ([TEXT, TEXT], 2), (ids, 1), ([ids, ids, ids], 3)]
    for prompt, count in forms:
        answer = client.completions.create(model="built-in", prompt=prompt, max_tokens=12)
        assert [choice.text for choice in answer.choices] == [alone] * count
        assert [choice.index for choice in answer.choices] == list(range(count))
        assert answer.usage is not None and answer.usage.prompt_tokens == count * len(ids)


def test_several_prompts_stream_under_their_own_index(client: openai.OpenAI) -> None:
    prompts = ["A block is", "A lane is", "A batch is"]
    settings: dict[str, Any] = {"model": "built-in", "prompt": prompts, "n": 2, "max_tokens": 8, "seed": 5}
    whole = client.completions.create(**settings)
    texts = [""] * 6
    for frame in client.completions.create(**settings, stream=True):
        texts[frame.choices[0].index] += frame.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_the_best_of_many(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"model": "built-in", "prompt": "Zebras sing", "temperature": 2, "seed": 1}
    every = client.completions.create(**settings, n=6, logprobs=0, max_tokens=10).choices
    best = client.completions.create(**settings, n=2, best_of=6, logprobs=0, max_tokens=10).choices

    def per_token(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return sum(values) / len(values)

    expected = sorted(every, key=per_token, reverse=True)[:2]
    assert [choice.text for choice in best] == [choice.text for choice in expected]
    assert [choice.index for choice in best] == [0, 1]


def test_echo_gives_the_prompt_back(server: Server, client: openai.OpenAI) -> None:
    plain = client.completions.create(model="built-in", prompt=TEXT, max_tokens=6).choices[0].text
    for prompt in (TEXT, token_ids(server, TEXT)):
        echoed = client.completions.create(model="built-in", prompt=prompt, max_tokens=6, echo=True)
        assert echoed.choices[0].text == TEXT + plain
    frames = client.completions.create(model="built-in", prompt=TEXT, max_tokens=6, echo=True, stream=True)
    assert "".join(frame.choices[0].text for frame in frames) == TEXT + plain


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_is_scored_to_its_last_token(server: Server, client: openai.OpenAI, max_tokens: int) -> None:
    """As lm-eval asks: the log-probability of a continuation is the sum over its tokens, the last one included."""
    context, continuation = TEXT, " who is in the batch."
    ids = token_ids(server, context + continuation)
    answer = client.completions.create(
        model="built-in", prompt=context + continuation, max_tokens=max_tokens, echo=True, logprobs=2, temperature=0
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.tokens is not None
    assert len(logprobs.tokens) == len(ids) + max_tokens
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None  # type: ignore[index]
    # Each token's score is what the engine gives for drawing it after the tokens before it.
    for position in range(1, len(ids)):
        step = server.post(
            "/v1/completions", {"prompt": ids[:position], "max_tokens": 1, "logprobs": 20, "temperature": 0}
        ).json()["choices"][0]["logprobs"]
        known = step["top_logprobs"][0]
        name = logprobs.tokens[position]
        score = logprobs.token_logprobs[position]
        if name in known:
            assert score == known[name], f"token {position}"
        else:
            assert score <= min(known.values())
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:n])) for n in range(len(logprobs.tokens))]
    assert choice.finish_reason == "length"


def test_nothing_but_scores(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="built-in", prompt=TEXT, max_tokens=0, echo=True, logprobs=1)
    assert answer.choices[0].text == TEXT and answer.usage is not None and answer.usage.completion_tokens == 0
    assert all(math.isfinite(value) for value in (answer.choices[0].logprobs.token_logprobs or [])[1:])  # type: ignore[union-attr]


def test_prompt_logprobs_as_vllm_has_them(server: Server) -> None:
    ids = token_ids(server, TEXT)
    for path, prompt in (
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    ):
        answer = server.post(path, {**prompt, "max_tokens": 1, "prompt_logprobs": 1, "return_token_ids": True}).json()
        holder = answer["choices"][0] if path == "/v1/completions" else answer
        scores = holder["prompt_logprobs"]
        assert scores[0] is None and len(scores) == answer["usage"]["prompt_tokens"]
        assert all(str(token) in one for token, one in zip(holder["prompt_token_ids"][1:], scores[1:], strict=True))
        if path == "/v1/completions":
            assert holder["prompt_token_ids"] == ids


def test_extras_of_vllm(client: openai.OpenAI) -> None:
    def ask(**extra: Any) -> Any:
        return client.completions.create(
            model="built-in", prompt=TEXT, max_tokens=8, temperature=0, extra_body=extra
        ).choices[0]

    plain = ask(return_token_ids=True)
    first = plain.token_ids[0]
    assert ask(stop_token_ids=[plain.token_ids[2]], return_token_ids=True).token_ids == plain.token_ids[:3]
    assert ask(stop_token_ids=[plain.token_ids[2]]).stop_reason == plain.token_ids[2]
    assert ask(logit_bias={str(first): -100}, return_token_ids=True).token_ids[0] != first
    assert ask(output_tokens=3, return_token_ids=True).token_ids == plain.token_ids[:3]
    assert ask(top_k=1, min_p=0.5, repetition_penalty=1.2).text
    assert ask(stop=[" "], include_stop_str_in_output=True).text.endswith(" ")
    assert len(ask(min_tokens=8, stop=[" "], return_token_ids=True).token_ids) == 8
    assert ask(cache_salt="mine").text == plain.text


def test_tokens_there_and_back(server: Server) -> None:
    ids = token_ids(server, TEXT)
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": TEXT, "content": TEXT}
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": TEXT}], "return_token_strs": True}).json()
    assert chat["count"] == len(chat["tokens"]) == len(chat["token_strs"]) > len(ids)


def test_only_allowed_tokens_and_no_bad_words(client: openai.OpenAI, server: Server) -> None:
    ask = {"model": "built-in", "prompt": "A block is", "max_tokens": 12, "temperature": 0}
    plain = server.post("/v1/completions", {**ask, "return_token_ids": True}).json()["choices"][0]
    allowed = sorted(set(plain["token_ids"][:3]) | {65, 66})
    only = server.post("/v1/completions", {**ask, "allowed_token_ids": allowed, "return_token_ids": True}).json()
    assert set(only["choices"][0]["token_ids"]) <= set(allowed)
    word = plain["text"].split()[1]
    without = server.post("/v1/completions", {**ask, "bad_words": [word]}).json()["choices"][0]["text"]
    assert word in plain["text"] and word not in without.split()
    for wrong in ({"allowed_token_ids": []}, {"allowed_token_ids": [10**6]}, {"bad_words": [" "]}):
        refused = server.post("/v1/completions", {**ask, **wrong})
        assert refused.status_code == 400 and refused.json()["error"]["param"] in wrong


def test_names_of_tokens_and_calls(server: Server) -> None:
    ask = {"prompt": "A block is", "max_tokens": 3, "logprobs": 1, "return_token_ids": True, "request_id": "mine-7"}
    answer = server.post("/v1/completions", {**ask, "return_tokens_as_token_ids": True}).json()
    choice = answer["choices"][0]
    assert answer["id"] == "cmpl-mine-7"
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert (
        server.post("/v1/completions", ask).json()["choices"][0]["logprobs"]["tokens"] != choice["logprobs"]["tokens"]
    )
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] and info["vocab_size"] > 100 and info["model_max_length"] > 100
