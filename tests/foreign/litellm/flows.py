"""Flows of LiteLLM: by the provider names `openai` and `hosted_vllm`, as people point it to a server of their own."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import litellm

WHERE: dict[str, Any] = {"api_base": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "max_retries": 0}


def version() -> str:
    from importlib.metadata import version

    return version("litellm")


def chat(**fields: Any) -> Any:
    return litellm.completion(**{**WHERE, **fields})


def stream_chat(**fields: Any) -> Any:
    return list(litellm.completion(stream=True, **WHERE, **fields))


def rebuild_stream(**fields: Any) -> Any:
    """Frames folded into an answer by LiteLLM itself."""
    frames = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **WHERE, **fields))
    return litellm.stream_chunk_builder(frames)


async def chat_async(count: int, **fields: Any) -> Any:
    return await asyncio.gather(*(litellm.acompletion(**WHERE, **fields) for _ in range(count)))


async def stream_async(**fields: Any) -> Any:
    return [frame async for frame in await litellm.acompletion(stream=True, **WHERE, **fields)]


def complete(**fields: Any) -> Any:
    return litellm.text_completion(**WHERE, **fields)


def stream_completion(**fields: Any) -> Any:
    return list(litellm.text_completion(stream=True, **WHERE, **fields))


def many(prompts: list[list[dict[str, str]]], **fields: Any) -> Any:
    return litellm.batch_completion(messages=prompts, **WHERE, **fields)


def route(model: str, **fields: Any) -> Any:
    """Two deployments under one name, the first of which fails: the router goes on to the second."""
    deployments = [
        {"model_name": "broken", "litellm_params": {"model": model, **WHERE, "api_key": "sk-wrong"}},
        {"model_name": "whole", "litellm_params": {"model": model, **WHERE}},
    ]
    router = litellm.Router(model_list=deployments, fallbacks=[{"broken": ["whole"]}], num_retries=0)
    return router.completion(model="broken", **fields)


def batch(lines: bytes | str, endpoint: str) -> Any:
    where: dict[str, Any] = {"custom_llm_provider": "openai", **WHERE}
    content = lines.encode() if isinstance(lines, str) else lines
    file = litellm.create_file(file=("lines.jsonl", content), purpose="batch", **where)
    job = litellm.create_batch(completion_window="24h", endpoint=endpoint, input_file_id=file.id, **where)
    while job.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        job = litellm.retrieve_batch(batch_id=job.id, **where)
    output = litellm.file_content(file_id=job.output_file_id, **where)
    listed = [one.id for one in litellm.list_batches(limit=10, **where).data]
    return {"job": job, "output": output.content.decode(), "listed": listed}
