"""Flows of OpenAI's client for Python."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import openai

URL, KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def version() -> str:
    return openai.__version__


def models() -> Any:
    return [model for model in client.models.list()]


def model(name: str) -> Any:
    return client.models.retrieve(name)


def complete(**fields: Any) -> Any:
    return client.completions.create(**fields)


def stream_completion(**fields: Any) -> Any:
    return list(client.completions.create(stream=True, **fields))


def chat(**fields: Any) -> Any:
    return client.chat.completions.create(**fields)


def stream_chat(**fields: Any) -> Any:
    return list(client.chat.completions.create(stream=True, **fields))


def stream_chat_with_helper(**fields: Any) -> Any:
    """The helper that folds frames; it asks for no more than create does."""
    with client.chat.completions.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        return {"kinds": kinds, "whole": stream.get_final_completion()}


def respond(**fields: Any) -> Any:
    answer = client.responses.create(**fields)
    return {"text": answer.output_text, "whole": answer}


def stream_response(**fields: Any) -> Any:
    return list(client.responses.create(stream=True, **fields))


def stream_response_with_helper(**fields: Any) -> Any:
    """The helper that folds events, and raises where they are out of order."""
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        return {"kinds": kinds, "text": stream.get_final_response().output_text}


def go_on_with_its_items(question: str, **fields: Any) -> Any:
    """The output of an answer goes back as the client's classes have it."""
    first = client.responses.create(**fields)
    said = [{"role": "user", "content": fields["input"]}, *first.output, {"role": "user", "content": question}]
    return {"first": first.output_text, "second": client.responses.create(**{**fields, "input": said}).output_text}


def raw_headers(**fields: Any) -> Any:
    answer = client.chat.completions.with_raw_response.create(**fields)
    return {"headers": dict(answer.headers), "request_id": answer.parse()._request_id}


async def chat_async(count: int, url: str = URL, max_retries: int = 0, **fields: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=max_retries) as many:
        return await asyncio.gather(*(many.chat.completions.create(**fields) for _ in range(count)))


async def stream_async(**fields: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as one:
        return [frame async for frame in await one.chat.completions.create(stream=True, **fields)]


def chat_with_key(key: str, **fields: Any) -> Any:
    return openai.OpenAI(base_url=URL, api_key=key, max_retries=0).chat.completions.create(**fields)


def chat_within(seconds: float, **fields: Any) -> Any:
    return client.with_options(timeout=seconds).chat.completions.create(**fields)


def leave_a_stream(frames: int, **fields: Any) -> Any:
    stream = client.chat.completions.create(stream=True, **fields)
    taken = [next(stream) for _ in range(frames)]
    stream.close()
    return len(taken)


def batch(lines: str, endpoint: str) -> Any:
    file = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    job = client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"who": "foreign"}
    )
    while job.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        job = client.batches.retrieve(job.id)
    listed = [one.id for one in client.batches.list(limit=10)]
    outputs = {
        name: client.files.content(file_id).text
        for name, file_id in (("output", job.output_file_id), ("error", job.error_file_id))
        if file_id
    }
    deleted = client.files.delete(file.id)
    return {"file": file, "job": job, "listed": listed, "deleted": deleted, **outputs}


def cancel_batch(lines: str, endpoint: str) -> Any:
    file = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    client.batches.cancel(job.id)
    while job.status != "cancelled":
        time.sleep(0.1)
        job = client.batches.retrieve(job.id)
    return job
