"""Flows of LlamaIndex' OpenAILike."""

from __future__ import annotations

import os
from typing import Any, Literal

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field

WHERE: dict[str, Any] = {
    "api_base": os.environ["BASE_URL"],
    "api_key": os.environ["API_KEY"],
    "max_retries": 0,
    "context_window": 1024,
}


def version() -> str:
    from importlib.metadata import version

    return version("llama-index-llms-openai-like")


def _messages(messages: list[dict[str, str]]) -> list[ChatMessage]:
    return [ChatMessage(role=one["role"], content=one["content"]) for one in messages]


def _summary(answer: Any) -> dict[str, Any]:
    return {"text": answer.message.content, "additional": dict(answer.additional_kwargs), "logprobs": answer.logprobs}


def chat(messages: list[dict[str, str]], **settings: Any) -> Any:
    return _summary(OpenAILike(is_chat_model=True, **{**WHERE, **settings}).chat(_messages(messages)))


def history(messages: list[dict[str, str]], question: str, **settings: Any) -> Any:
    """The answer's message goes back as the object that it came as."""
    model = OpenAILike(is_chat_model=True, **WHERE, **settings)
    first = model.chat(_messages(messages)).message
    again = [*_messages(messages), first, ChatMessage(role="user", content=question)]
    return {"first": first.content, **_summary(model.chat(again))}


def stream_chat(messages: list[dict[str, str]], **settings: Any) -> Any:
    return [part.delta for part in OpenAILike(is_chat_model=True, **WHERE, **settings).stream_chat(_messages(messages))]


async def chat_async(messages: list[dict[str, str]], **settings: Any) -> Any:
    return _summary(await OpenAILike(is_chat_model=True, **WHERE, **settings).achat(_messages(messages)))


async def stream_chat_async(messages: list[dict[str, str]], **settings: Any) -> Any:
    stream = await OpenAILike(is_chat_model=True, **WHERE, **settings).astream_chat(_messages(messages))
    return [part.delta async for part in stream]


def complete(prompt: str, **settings: Any) -> Any:
    answer = OpenAILike(**WHERE, **settings).complete(prompt)
    return {"text": answer.text, "additional": dict(answer.additional_kwargs)}


def stream_completion(prompt: str, **settings: Any) -> Any:
    return [part.delta for part in OpenAILike(**WHERE, **settings).stream_complete(prompt)]


async def complete_async(prompt: str, **settings: Any) -> Any:
    return (await OpenAILike(**WHERE, **settings).acomplete(prompt)).text


class City(BaseModel):
    """The form for a model that can only guess: all is bound, so that it comes to an end. This client leaves a
    schema as the class has it."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Report(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


def weather(city: str) -> str:
    """The weather of a city."""
    return "21 degrees"


def inhabitants(city: str) -> str:
    """How many live in a city."""
    return "440 thousand people"


TOOLS = [FunctionTool.from_defaults(weather), FunctionTool.from_defaults(inhabitants)]


def _caller(model: str, **settings: Any) -> OpenAILike:
    return OpenAILike(model=model, is_chat_model=True, is_function_calling_model=True, **WHERE, **settings)


def run_tools(question: str, streams: bool, **settings: Any) -> Any:
    """Until the model calls nothing more; its message goes back as the object that it came as."""
    model = _caller(**settings)
    history = [ChatMessage(role="user", content=question)]
    called = []
    while True:
        asked: dict[str, Any] = {"chat_history": history, "allow_parallel_tool_calls": True}
        if streams:
            *_, answer = model.stream_chat_with_tools(TOOLS, **asked)
        else:
            answer = model.chat_with_tools(TOOLS, **asked)
        history.append(answer.message)
        calls = model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
        if not calls:
            return {"called": called, "text": answer.message.content}
        for call in calls:
            called.append([call.tool_name, call.tool_kwargs])
            found = next(tool for tool in TOOLS if tool.metadata.name == call.tool_name)
            result = str(found(**call.tool_kwargs))
            history.append(ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id}))


async def run_agent(question: str, streams: bool, **settings: Any) -> Any:
    """The client's own loop."""
    agent = FunctionAgent(tools=TOOLS, llm=_caller(**settings), system_prompt="Be brief.", streaming=streams)
    running = agent.run(user_msg=question)
    called = [
        [event.tool_name, event.tool_kwargs]
        async for event in running.stream_events()
        if isinstance(event, ToolCallResult)
    ]
    return {"called": called, "text": str(await running)}


def report(question: str, **settings: Any) -> Any:
    """By a call of the class."""
    model = _caller(**settings)
    made = model.structured_predict(Report, PromptTemplate("{question}"), question=question)
    *_, grown = model.stream_structured_predict(Report, PromptTemplate("{question}"), question=question)
    assert isinstance(made, Report)
    return {"made": made, "streamed": grown}


def guess(question: str, **settings: Any) -> Any:
    """In the class's form."""
    model = OpenAILike(is_chat_model=True, should_use_structured_outputs=True, **WHERE, **settings)
    made = model.structured_predict(City, PromptTemplate("{question}"), question=question)
    assert isinstance(made, City)
    return made
