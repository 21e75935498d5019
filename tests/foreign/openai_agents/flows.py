"""Flows of OpenAI's Agents SDK."""

from __future__ import annotations

import os
from typing import Any, Literal

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

URL, KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
set_tracing_disabled(True)


def _model(model: str, api: str, key: str = KEY) -> Model:
    """api: chat, responses."""
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    return kind(model, AsyncOpenAI(base_url=URL, api_key=key, max_retries=0))


def _summary(run: Any) -> dict[str, Any]:
    usage = run.context_wrapper.usage
    counts = {"requests": usage.requests, "input": usage.input_tokens, "output": usage.output_tokens}
    items = [type(item).__name__ for item in run.new_items]
    return {"answer": run.final_output, "by": run.last_agent.name, "items": items, **counts}


async def _run(agent: Agent[None], question: Any, streams: bool, session: Any = None) -> dict[str, Any]:
    if not streams:
        return _summary(await Runner.run(agent, question, session=session))
    run = Runner.run_streamed(agent, question, session=session)
    heard, events, agents = "", [], []
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            heard += event.data.delta
        elif event.type == "run_item_stream_event":
            events.append(event.name)
        elif event.type == "agent_updated_stream_event":
            agents.append(event.new_agent.name)
    return {**_summary(run), "heard": heard, "events": events, "agents": agents}


async def ask(question: str, model: str, api: str, streams: bool = False, key: str = KEY, **settings: Any) -> Any:
    chosen = _model(model, api, key)
    agent = Agent("Desk", instructions="You are brief.", model=chosen, model_settings=ModelSettings(**settings))
    return await _run(agent, question, streams)


async def converse(questions: list[str], model: str, api: str, streams: bool, **settings: Any) -> Any:
    """The client keeps what was said in a session, and sends it all again."""
    chosen, session = _model(model, api), SQLiteSession("one")
    agent = Agent("Desk", instructions="You are brief.", model=chosen, model_settings=ModelSettings(**settings))
    return [(await _run(agent, question, streams, session))["answer"] for question in questions]


class City(BaseModel):
    """The form that a model is asked for that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Report(BaseModel):
    city: str
    degrees: int


def _tools(called: list[Any], *names: str) -> list[Any]:
    answers = {"weather": "21 degrees", "inhabitants": "440 thousand people", "survey": "surveyed: 21"}

    def tool(name: str) -> Any:
        @function_tool(name_override=name)
        def run(city: str) -> str:
            """Return a fact of a city."""
            called.append([name, {"city": city}])
            return answers[name]

        return run

    return [tool(name) for name in names]


async def run_tools(question: str, model: str, api: str, streams: bool) -> Any:
    called: list[Any] = []
    agent = Agent("Desk", model=_model(model, api), tools=_tools(called, "weather", "inhabitants"))
    return {"called": called, **await _run(agent, question, streams)}


async def hand_over(question: str, model: str, api: str, streams: bool) -> Any:
    """One agent has no tools but the other, who has two."""
    called: list[Any] = []
    chosen = _model(model, api)
    desk = Agent("Weather desk", model=chosen, tools=_tools(called, "weather", "inhabitants"))
    porter = Agent("Porter", instructions="You send people to a desk.", model=chosen, handoffs=[desk])
    return {"called": called, **await _run(porter, question, streams)}


async def ask_an_expert(question: str, model: str, api: str, streams: bool) -> Any:
    """An agent is another's tool."""
    called: list[Any] = []
    chosen = _model(model, api)
    desk = Agent("Expert", model=chosen, tools=_tools(called, "weather", "inhabitants"))
    asking = desk.as_tool("expert", "Knows cities.")
    porter = Agent("Porter", model=chosen, tools=[asking], model_settings=ModelSettings(tool_choice="required"))
    return {"called": called, **await _run(porter, question, streams)}


async def go_on(question: str, model: str, streams: bool) -> Any:
    """Each turn goes on from the stored response before it, and sends what is new alone."""
    called: list[Any] = []
    agent = Agent("Desk", model=_model(model, "responses"), tools=_tools(called, "weather", "inhabitants"))
    if streams:
        run = Runner.run_streamed(agent, question, auto_previous_response_id=True)
        async for _ in run.stream_events():
            pass
        return {"called": called, **_summary(run)}
    return {"called": called, **_summary(await Runner.run(agent, question, auto_previous_response_id=True))}


async def survey(question: str, model: str, api: str, streams: bool) -> Any:
    """A tool first, and then the answer in the class's form."""
    called: list[Any] = []
    agent = Agent("Desk", model=_model(model, api), tools=_tools(called, "survey"), output_type=Report)
    result = await _run(agent, question, streams)
    assert isinstance(result["answer"], Report)
    return {"called": called, **result}


async def guess(question: str, model: str, api: str, streams: bool, **settings: Any) -> Any:
    """The answer in the class's form."""
    agent = Agent("Desk", model=_model(model, api), output_type=City, model_settings=ModelSettings(**settings))
    result = await _run(agent, question, streams)
    assert isinstance(result["answer"], City)
    return result
