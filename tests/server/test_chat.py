"""/v1/chat/completions through OpenAI's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from .conftest import Server

QUESTION = [{"role": "user", "content": "What is a KV block?"}]
OPEN = [{"role": "user", "content": "Zebras sing; tell me something else."}]  # the model is not sure what to say


def test_an_answer_with_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="built-in", messages=QUESTION)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and "KV" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.service_tier == "default"


def test_frames_say_the_same_and_end_with_usage(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="built-in", messages=QUESTION)
    frames = list(
        client.chat.completions.create(
            model="built-in", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
    )
    assert frames[0].choices[0].delta.role == "assistant"
    text = "".join(frame.choices[0].delta.content or "" for frame in frames[:-1])
    assert text == whole.choices[0].message.content
    assert [frame.choices[0].finish_reason for frame in frames[:-1]].count("stop") == 1
    assert frames[-1].choices == [] and all(frame.usage is None for frame in frames[:-1])
    assert frames[-1].usage is not None and whole.usage is not None
    assert frames[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_continuous_usage_counts_up(client: openai.OpenAI) -> None:
    frames = client.chat.completions.create(
        model="built-in",
        messages=QUESTION,
        stream=True,
        stream_options={"continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
    )
    counts = [frame.usage.completion_tokens for frame in frames if frame.usage is not None]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] > 5


def test_continuous_usage_has_the_cached_tokens_from_its_first_frame(client: openai.OpenAI) -> None:
    settings: dict[str, Any] = {"model": "built-in", "messages": [*QUESTION, *QUESTION, *QUESTION], "max_tokens": 4}
    client.chat.completions.create(**settings)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    frames = client.chat.completions.create(**settings, stream=True, stream_options=usage)
    counts = {frame.usage.prompt_tokens_details.cached_tokens for frame in frames}
    assert len(counts) == 1 and counts.pop() >= 16


def test_log_probabilities_with_their_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="built-in", messages=QUESTION, logprobs=True, top_logprobs=3, max_completion_tokens=6
    )
    entries = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert entries is not None and len(entries) == 6
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        assert entry.top_logprobs[0].logprob == max(top.logprob for top in entry.top_logprobs)
        assert bytes(entry.bytes or ()).decode() == entry.token
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content


def test_frames_carry_the_same_log_probabilities(client: openai.OpenAI) -> None:
    settings = {"model": "built-in", "messages": QUESTION, "logprobs": True, "max_completion_tokens": 9}
    whole = client.chat.completions.create(**settings)  # type: ignore[call-overload]
    entries = []
    for frame in client.chat.completions.create(**settings, stream=True):  # type: ignore[call-overload]
        if frame.choices[0].logprobs is not None:
            entries += frame.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in whole.choices[0].logprobs.content]


def test_several_samples_differ_and_repeat_under_a_seed(client: openai.OpenAI) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model="built-in", messages=OPEN, n=4, temperature=2, seed=7, max_completion_tokens=12
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


def test_samples_stream_side_by_side(client: openai.OpenAI) -> None:
    settings = {"model": "built-in", "messages": OPEN, "n": 3, "temperature": 2, "seed": 3, "max_tokens": 12}
    whole = client.chat.completions.create(**settings)  # type: ignore[call-overload]
    texts, ends, roles = ["", "", ""], [0, 0, 0], [0, 0, 0]
    for frame in client.chat.completions.create(**settings, stream=True):  # type: ignore[call-overload]
        choice = frame.choices[0]
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] += choice.finish_reason is not None
        roles[choice.index] += choice.delta.role is not None
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == roles == [1, 1, 1]


def test_stops_and_limits(client: openai.OpenAI) -> None:
    stopped = client.chat.completions.create(model="built-in", messages=QUESTION, stop=["KV"])
    assert stopped.choices[0].finish_reason == "stop" and "KV" not in (stopped.choices[0].message.content or "")
    assert stopped.choices[0].stop_reason == "KV"  # type: ignore[attr-defined]
    short = client.chat.completions.create(model="built-in", messages=QUESTION, max_completion_tokens=3)
    assert short.choices[0].finish_reason == "length" and short.usage is not None
    assert short.usage.completion_tokens == 3


def test_a_repeated_prompt_is_cached(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "Tell me about batching. " * 12}]
    first = client.chat.completions.create(model="built-in", messages=long, max_tokens=2)  # type: ignore[arg-type]
    again = client.chat.completions.create(model="built-in", messages=long, max_tokens=2)  # type: ignore[arg-type]
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= 32
    assert first.choices[0].message.content == again.choices[0].message.content


def test_timings_account_for_the_whole_time(server: Server) -> None:
    body = {"messages": QUESTION, "timings": True, "service_tier": "flex", "return_token_ids": True}
    answer = server.post("/v1/chat/completions", body).json()
    timings = answer["timings"]
    parts = ("queue_ms", "prefill_ms", "decode_ms", "preempted_ms", "other_ms")
    assert sum(timings[part] for part in parts) == pytest.approx(timings["total_ms"], abs=0.01)
    assert timings["lane"] == "batch" and answer["service_tier"] == "flex"
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]


def test_many_at_once_say_what_they_say_alone(server: Server) -> None:
    questions = ["What is a KV block?", "What is continuous batching?", "What is a lane?", "What is preemption?"] * 8

    async def ask(client: openai.AsyncOpenAI, question: str) -> str:
        text = ""
        stream = await client.chat.completions.create(
            model="built-in", messages=[{"role": "user", "content": question}], stream=True
        )
        async for frame in stream:
            text += frame.choices[0].delta.content or ""
        return text

    async def main() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(ask(client, question) for question in questions))

    alone = {
        question: server.client()
        .chat.completions.create(model="built-in", messages=[{"role": "user", "content": question}])
        .choices[0]
        .message.content
        for question in set(questions)
    }
    assert asyncio.run(main()) == [alone[question] for question in questions]


def test_messages_may_come_in_parts_and_from_developers(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="built-in", messages=[{"role": "system", "content": "Be brief."}, *QUESTION], max_tokens=8
    )
    parts = client.chat.completions.create(
        model="built-in",
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "text", "text": "What is a KV block?"}]},
        ],
        max_tokens=8,
    )
    assert parts.choices[0].message.content == whole.choices[0].message.content
