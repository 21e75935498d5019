"""Flows of langchain-openai."""

from __future__ import annotations

import os
from typing import Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

WHERE: dict[str, Any] = {
    "base_url": os.environ["BASE_URL"],
    "api_key": os.environ["API_KEY"],
    "max_retries": 0,
}


def version() -> str:
    from importlib.metadata import version

    return version("langchain-openai")


def invoke(messages: list[Any], **settings: Any) -> Any:
    return ChatOpenAI(**{**WHERE, **settings}).invoke(messages)


def history(messages: list[Any], question: str, **settings: Any) -> Any:
    """The answer goes back as the object that it came as."""
    model = ChatOpenAI(**WHERE, **settings)
    return model.invoke([*messages, model.invoke(messages), ("human", question)])


def stream(messages: list[Any], **settings: Any) -> Any:
    return list(ChatOpenAI(**WHERE, **settings).stream(messages))


def batch(conversations: list[list[Any]], **settings: Any) -> Any:
    return ChatOpenAI(**WHERE, **settings).batch(conversations)


async def invoke_async(messages: list[Any], **settings: Any) -> Any:
    return await ChatOpenAI(**WHERE, **settings).ainvoke(messages)


async def stream_async(messages: list[Any], **settings: Any) -> Any:
    return [part async for part in ChatOpenAI(**WHERE, **settings).astream(messages)]


def chain(question: str, **settings: Any) -> str:
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    prompt = ChatPromptTemplate.from_messages([("system", "You are brief."), ("human", "{question}")])
    return (prompt | ChatOpenAI(**WHERE, **settings) | StrOutputParser()).invoke({"question": question})


def complete(prompt: str, **settings: Any) -> Any:
    return OpenAI(**WHERE, **settings).invoke(prompt)


def complete_many(prompts: list[str], **settings: Any) -> Any:
    return OpenAI(**WHERE, **settings).generate(prompts)


def stream_completion(prompt: str, **settings: Any) -> Any:
    return list(OpenAI(**WHERE, **settings).stream(prompt))


class City(BaseModel):
    """The form that a model is asked for that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Report(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "21 degrees"


@tool
def inhabitants(city: str) -> str:
    """How many live in a city."""
    return "440 thousand people"


TOOLS = {"weather": weather, "inhabitants": inhabitants}


def run_tools(question: str, streams: bool, **settings: Any) -> Any:
    """Until the model calls nothing more; its messages go back as they came, folded from chunks where it streams."""
    model = ChatOpenAI(**WHERE, **settings).bind_tools([*TOOLS.values()])
    messages: list[Any] = [HumanMessage(question)]
    called = []
    while True:
        if streams:
            first, *more = model.stream(messages)
            message = sum(more, first)
        else:
            message = model.invoke(messages)
        messages.append(message)
        if not message.tool_calls:
            return {"called": called, "text": message.text}
        for call in message.tool_calls:
            called.append([call["name"], call["args"]])
            messages.append(TOOLS[call["name"]].invoke(call))


def forced(question: str, choice: str, **settings: Any) -> Any:
    model = ChatOpenAI(**WHERE, **settings).bind_tools([*TOOLS.values()], tool_choice=choice)
    return [[call["name"], call["args"]] for call in model.invoke([HumanMessage(question)]).tool_calls]


def structured(question: str, kind: str, method: str, **settings: Any) -> Any:
    """whole: what the class's parser makes of the answer; grown: the same of its stream's last state."""
    cls = {"City": City, "Report": Report}[kind]
    model = ChatOpenAI(**WHERE, **settings).with_structured_output(cls, method=method)
    whole, grown = model.invoke(question), list(model.stream(question))
    assert isinstance(whole, cls) and isinstance(grown[-1], cls)
    return {"whole": whole, "streamed": grown[-1]}
