"""Flows of Pydantic AI with plain text answers."""

from __future__ import annotations

import os
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.vllm import VLLMProvider

URL, KEY = os.environ["BASE_URL"], os.environ["API_KEY"]


def version() -> str:
    from importlib.metadata import version

    return version("pydantic-ai-slim")


def _agent(model: str, provider: str, key: str = KEY, **settings: Any) -> Agent[None, str]:
    kind = VLLMProvider if provider == "vllm" else OpenAIProvider
    chat = OpenAIChatModel(model, provider=kind(base_url=URL, api_key=key))
    return Agent(chat, instructions="You are brief.", model_settings=settings, retries=0)


def _told(run: Any) -> dict[str, Any]:
    usage = run.usage() if callable(run.usage) else run.usage
    return {"text": run.output, "input": usage.input_tokens, "output": usage.output_tokens}


async def ask(question: str, **settings: Any) -> Any:
    return _told(await _agent(**settings).run(question))


def ask_sync(question: str, **settings: Any) -> Any:
    return _told(_agent(**settings).run_sync(question))


async def converse(questions: list[str], **settings: Any) -> Any:
    """Each answer goes back in the next call's history."""
    agent = _agent(**settings)
    history: Any = None
    texts = []
    for question in questions:
        run = await agent.run(question, message_history=history)
        history = run.all_messages()
        texts.append(run.output)
    return texts


async def stream(question: str, **settings: Any) -> Any:
    async with _agent(**settings).run_stream(question) as run:
        parts = [part async for part in run.stream_text(delta=True, debounce_by=None)]
        usage = run.usage() if callable(run.usage) else run.usage
        return {"parts": parts, "input": usage.input_tokens, "output": usage.output_tokens}
