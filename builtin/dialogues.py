"""Conversations as the model learns them: messages about batching, tools and facts, plain or beside one another.

What it knows: in which order messages come, how a list of tools and a call are written, and how often each kind of
conversation comes in an epoch. What it does not know: tokens.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from entries import OFF_TOPIC, Entry, Turns
from facts import fact_in_json
from rewording import reword
from rows import QUESTION_WEIGHT, Message
from toy_tools import FAMILIES, Family, Tool, Use, tool_by_name, tool_of, use
from values import Values

SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are a helpful assistant that answers questions about LLM serving.",
    "Answer the question briefly.",
    "You are an expert on batching. Be concise and correct.",
    "You are the assistant of inflight.",
    "You are a helpful assistant. Use the tools.",
]
IN_JSON = (" Answer in JSON.", " Answer as JSON.", " Reply in JSON.", " Give me JSON.")
SHORT_ANSWER = 120  # characters of an answer that is also given in JSON


def chat(turns: Turns, varied: bool = False, system: str | None = None) -> list[Message]:
    messages = [] if system is None else [Message("system", system)]
    for question, answer in turns:
        messages.append(Message("user", question, QUESTION_WEIGHT, varied))
        messages.append(Message("assistant", answer, 1.0))
    return messages


def tools_listed(tools: Sequence[Tool]) -> Message:
    """As chat_template.jinja lists them."""
    lines = [json.dumps({"name": tool.name, "arguments": tool.types}) for tool in tools]
    return Message("system", "\n".join(["Tools:", *lines]))


def call(tool: Tool, arguments: dict[str, str]) -> str:
    """A number is written as the request wrote it."""
    said = ", ".join(
        f"{json.dumps(name)}: {json.dumps(value) if tool.types[name] == 'string' else value}"
        for name, value in arguments.items()
    )
    return f'<tool_call>\n{{"name": "{tool.name}", "arguments": {{{said}}}}}\n</tool_call>'


def some_tools(rng: random.Random, without: Sequence[Family] = ()) -> list[Tool]:
    """One to four, of different names."""
    families = [family for family in FAMILIES if not any(family.names == other.names for other in without)]
    tools = [
        tool_of(rng.choice(families), rng) if rng.random() < 0.75 else tool_by_name(rng)
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4]))
    ]
    return list({tool.name: tool for tool in tools}.values())


def a_use(values: Values) -> tuple[list[Message], Use]:
    """Up to the call: tools, one of which fits, now and then a system message, and the request."""
    rng = values.rng
    tools = some_tools(rng)
    tool = rng.choice(tools)
    if tool.family is not None:  # of two tools that would do, one cannot be told from the other
        tools = [other for other in tools if other is tool or other.family is None or other.family != tool.family]
    used = use(tool, values)
    request = used.request if values.unseen or rng.random() < 0.7 else _said_otherwise(used, rng)
    messages = [tools_listed(tools)]
    if rng.random() < 0.12:
        messages.append(Message("system", rng.choice(SYSTEM_MESSAGES)))
    calls = "\n".join(call(tool, arguments) for arguments in used.arguments)
    return [*messages, Message("user", request), Message("assistant", calls, 1.0)], used


def _said_otherwise(used: Use, rng: random.Random) -> str:
    """With the values as they were: a form in which one is gone is not used."""
    other = reword(used.request, rng)
    values = [value for arguments in used.arguments for value in arguments.values()]
    return other if all(value in other for value in values) else used.request


def called(values: Values) -> list[Message]:
    return a_use(values)[0]


def told(values: Values) -> list[Message]:
    """On to the sentence that tells the result; of several calls, the first one's alone is drawn, so there is one."""
    while True:
        messages, used = a_use(values)
        if len(used.arguments) == 1:
            return [*messages, Message("tool", used.result), Message("assistant", used.told, 1.0)]


def refused(values: Values) -> list[Message]:
    """A request for which no tool is at hand: others, or none at all."""
    rng = values.rng
    family = rng.choice([family for family in FAMILIES if family.refusal is not None])
    request = use(tool_of(family, rng), values).request
    near = [other for other in FAMILIES if other.refusal == family.refusal]
    tools = [tools_listed(some_tools(rng, near))] if rng.random() < 0.7 else []
    return [*tools, Message("user", request), Message("assistant", family.refusal or "", 1.0)]


def beside_tools(turns: Turns, rng: random.Random, varied: bool = False) -> list[Message]:
    """Questions about batching, with tools at hand that are of no use for them."""
    return [tools_listed(some_tools(rng)), *chat(turns, varied)]


def after_a_use(turns: Turns, values: Values) -> list[Message]:
    """Questions about batching after a tool was used, or its use after them."""
    messages = told(values)
    at = len(messages) if values.rng.random() < 0.6 else next(i for i, m in enumerate(messages) if m.role == "user")
    return [*messages[:at], *chat(turns), *messages[at:]]


def of_tools_and_facts(uses: int, facts: int, values: Values) -> Iterator[list[Message]]:
    for _ in range(uses):
        yield called(values) if values.rng.random() < 0.5 else told(values)
    for _ in range(uses // 3):
        yield refused(values)
    for _ in range(facts):
        yield fact_in_json(values)


def about_batching(entries: list[Entry], conversations: Iterator[Turns], values: Values) -> Iterator[list[Message]]:
    """The epoch's conversations, some of them beside tools, and a few answers in JSON."""
    rng = values.rng
    off_topic = {entry.answer for entry in entries if entry.topic == OFF_TOPIC}
    for turns in conversations:
        varied = rng.random() < 0.5
        way, on_topic = rng.random(), turns[-1][1] not in off_topic
        if way < 0.10 and on_topic:
            yield beside_tools(turns, rng, varied)
        elif way < 0.13 and on_topic and len(turns) == 1:
            yield after_a_use(turns, values)
        elif way < 0.25 and on_topic and len(turns[-1][1]) <= SHORT_ANSWER and len(turns) == 1:
            yield in_json(turns, rng)
        else:
            yield chat(turns, varied, rng.choice(SYSTEM_MESSAGES) if rng.random() < 0.05 else None)


def in_json(turns: Turns, rng: random.Random) -> list[Message]:
    (question, answer), asked = turns[-1], rng.choice(IN_JSON)
    messages = chat([(question + asked, json.dumps({"answer": answer}, ensure_ascii=False))])
    return [replace(messages[0], varied=False), messages[1]]
