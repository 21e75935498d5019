"""Flows of Pydantic AI."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
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


def _summary(run: Any) -> dict[str, Any]:
    usage = run.usage() if callable(run.usage) else run.usage
    return {"text": run.output, "input": usage.input_tokens, "output": usage.output_tokens}


async def ask(question: str, **settings: Any) -> Any:
    return _summary(await _agent(**settings).run(question))


def ask_sync(question: str, **settings: Any) -> Any:
    return _summary(_agent(**settings).run_sync(question))


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


class City(BaseModel):
    """The form that a model is asked for that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Report(BaseModel):
    city: str
    degrees: int


def _tool_agent(model: str, api: str, output: Any, called: list[Any]) -> Agent[None, Any]:
    """api: chat, responses."""
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
    chosen = kind(model, provider=OpenAIProvider(base_url=URL, api_key=KEY))
    agent: Agent[None, Any] = Agent(chosen, instructions="You are brief.", output_type=output, retries=0)

    def tool(name: str, answer: str) -> None:
        async def run(city: str) -> str:
            """Return a fact of a city."""
            called.append([name, {"city": city}])
            return answer

        agent.tool_plain(run, name=name)

    tool("weather", "21 degrees")
    tool("inhabitants", "440 thousand people")
    tool("measure", "measured: 21")
    return agent


async def run_tools(question: str, model: str, api: str) -> Any:
    called: list[Any] = []
    run = await _tool_agent(model, api, str, called).run(question)
    return {"called": called, "text": run.output}


async def stream_tools(question: str, model: str, api: str) -> Any:
    called: list[Any] = []
    async with _tool_agent(model, api, str, called).run_stream(question) as run:
        text = "".join([part async for part in run.stream_text(delta=True, debounce_by=None)])
    return {"called": called, "text": text}


async def report(question: str, model: str, api: str) -> Any:
    """A tool first, and then the answer as a call of a tool that the client makes of the class."""
    called: list[Any] = []
    run = await _tool_agent(model, api, Report, called).run(question)
    assert isinstance(run.output, Report)
    return {"called": called, "made": run.output}


async def guess(question: str, model: str, api: str, **settings: Any) -> Any:
    """The answer in the class's form."""
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
    chosen = kind(model, provider=OpenAIProvider(base_url=URL, api_key=KEY))
    agent = Agent(chosen, output_type=NativeOutput(City), model_settings=settings, retries=0)  # type: ignore[arg-type]
    run = await agent.run(question)
    async with agent.run_stream(question) as stream:
        grown = [part async for part in stream.stream_output(debounce_by=None)]
    assert isinstance(run.output, City) and isinstance(grown[-1], City)
    return {"made": run.output, "streamed": grown[-1]}
