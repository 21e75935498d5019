"""Measure what reading a body costs: msgspec, as the server reads it, beside the same fields and limits checked by
pydantic.

Bodies that clients send, and bodies that are meant to do harm. Each is read in a process of its own, so that
memory is that body's alone; both libraries take turns.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from benchmarks.comparison import log_line, publish
from benchmarks.results import table

REPEATS = 5
BODIES: Mapping[str, Callable[[], bytes]] = {
    "a question, 0.2 kB": lambda: chat("What is a KV block?"),
    "a history of 40 messages, 34 kB": lambda: json.dumps(
        {"messages": [{"role": ("user", "assistant")[n % 2], "content": "words " * 140} for n in range(40)]}
    ).encode(),
    "one message of 1 MB": lambda: chat("words " * 170_000),
    "a prompt of 100,000 token ids": lambda: json.dumps({"prompt": list(range(100_000))}).encode(),
    "1,000,000 times −1 as token ids": lambda: b'{"prompt": [' + b"-1," * 999_999 + b"-1]}",
    "1,000,000 times [] as a prompt": lambda: b'{"prompt": [' + b"[]," * 999_999 + b"[]]}",
    "300,000 messages of the wrong shape": lambda: b'{"messages": [' + b"{}," * 299_999 + b"{}]}",
    "300,000 empty messages": lambda: (
        b'{"messages": [' + ",".join(['{"role": "user", "content": ""}'] * 300_000).encode() + b"]}"
    ),
    "an unknown field, its name 5 MB long": lambda: b'{"messages": [], "' + b"x" * 5_000_000 + b'": 1}',
    "200,000 stop strings": lambda: b'{"prompt": "x", "stop": [' + b'"y",' * 199_999 + b'"y"]}',
}


def chat(content: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], "temperature": 0.7, "n": 1}).encode()


def by_msgspec(body: bytes) -> str:
    from inflight.server.errors import ApiError
    from inflight.server.openai.chat import CHAT
    from inflight.server.openai.completions import COMPLETION

    try:
        (COMPLETION if b'"prompt"' in body[:40] else CHAT).decode(body)
    except ApiError as error:
        return f"refused: {error.code}"
    return "taken"


def by_pydantic(body: bytes) -> str:
    from pydantic import ValidationError

    chat_body, completion_body = _pydantic_bodies()
    try:
        (completion_body if b'"prompt"' in body[:40] else chat_body).model_validate_json(body)
    except ValidationError as error:
        return f"refused: {error.errors()[0]['type']}"
    return "taken"


@functools.cache
def _pydantic_bodies() -> tuple[Any, Any]:
    """The fields that these bodies use, with the types and limits that the server has for them."""
    from pydantic import BaseModel, ConfigDict, Field, create_model

    from inflight.server.common import fields

    class Base(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)

    text = Annotated[str, Field(max_length=fields.MAX_TEXT_CHARS)]
    message = create_model("Message", role=(str, ...), content=(text, ...))
    settings: dict[str, Any] = {
        "temperature": (Annotated[float, Field(ge=0, le=2)] | None, None),
        "n": (Annotated[int, Field(ge=1, le=1024)] | None, None),
        "stop": (str | Annotated[list[str], Field(max_length=fields.MAX_STOPS)] | None, None),
    }
    token = Annotated[int, Field(ge=0, lt=2**31)]
    prompts = str | list[str] | list[token] | list[list[token]]
    messages: Any = Annotated[
        list[message],  # type: ignore[valid-type]
        Field(min_length=1, max_length=fields.MAX_MESSAGES),
    ]
    return (
        create_model("Chat", __base__=Base, messages=(messages, ...), **settings),
        create_model("Completion", __base__=Base, prompt=(prompts, ...), **settings),
    )


READERS = {"msgspec": by_msgspec, "pydantic": by_pydantic}


def measure(reader: str, name: str, pipe: Any) -> None:
    """In a process of its own: seconds, bytes of memory beyond the body, and what came of it."""
    READERS[reader](chat("warm"))
    body = BODIES[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    outcome = READERS[reader](body)
    seconds = time.perf_counter() - started
    pipe.send((seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, outcome))


def measured(reader: str, name: str) -> tuple[float, float, str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(reader, name, theirs))
    process.start()
    theirs.close()
    try:
        seconds, memory, outcome = ours.recv()
    finally:
        process.join()
    return seconds, memory, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    rows = []
    for name in BODIES:
        runs: dict[str, list[tuple[float, float, str]]] = {reader: [] for reader in READERS}
        for _ in range(REPEATS):
            for reader in READERS:
                runs[reader].append(measured(reader, name))
        row = [name]
        for reader in READERS:
            seconds = statistics.median(one[0] for one in runs[reader])
            memory = statistics.median(one[1] for one in runs[reader])
            row += [f"{seconds * 1e3:,.2f}", f"{memory / 1e6:,.1f}", runs[reader][0][2]]
        rows.append(row)
        log_line(" | ".join(row))
    head = ["body", *(f"{reader}: {what}" for reader in READERS for what in ("ms", "MB", "outcome"))]
    publish("body_validation", "What reading a body costs", table(head, rows), arguments.write)


if __name__ == "__main__":
    main()
