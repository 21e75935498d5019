"""BFCL's cases of tool calls asked of a real model: how many answers are calls that the tools allow.

    python -m benchmarks.judges bfcl --cases 16 --write

Each case is asked under `tool_choice` auto, streamed, and under required. An answer is right if it parses, names one of
the case's functions, and its arguments satisfy the function's schema. Whether it is the call that BFCL expects depends
on the model, and is not looked at.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema  # type: ignore[import-untyped]

from benchmarks.comparison import log_line
from benchmarks.results import table, write_section
from benchmarks.served import Server
from tests.foreign.environments import HOME

PACKAGE = "bfcl-eval==2026.3.23"
CATEGORIES = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_relevance", "live_irrelevance"),
    "multi_turn_base",
)
# BFCL names types as Python and Java do; those that are not here are JSON Schema's own.
TYPES = {
    **dict.fromkeys(("dict", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("float", "double", "Float", "Double"), "number"),
    **dict.fromkeys(("int", "long", "short", "byte", "Integer", "Long", "Bigint"), "integer"),
    **dict.fromkeys(("list", "tuple", "Array", "ArrayList", "Set", "Queue", "Stack"), "array"),
    **dict.fromkeys(("String", "char"), "string"),
    **dict.fromkeys(("bool", "Boolean"), "boolean"),
}
JSON_TYPES = {"object", "number", "integer", "array", "string", "boolean", "null"}
KEYWORDS = {"type", "properties", "required", "items", "enum", "description", "default", "additionalProperties"}
MAX_TOKENS = 160
STREAMS = 4
Mode = Literal["auto", "required"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    messages: list[Json]
    functions: dict[str, Json]  # parameters as JSON Schema, by name
    tools: list[Json]


@dataclass(slots=True)
class Tally:
    """Counts of answers. cut_off: by max_tokens. wrong: a sentence for each answer that breaks a rule."""

    cases: int = 0
    calls: int = 0
    called: int = 0
    texts: int = 0
    cut_off: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def schema_of(given: Any) -> Any:
    """Return a parameter of BFCL as JSON Schema."""
    if not isinstance(given, dict):
        return given
    kind = TYPES.get(str(given.get("type")), str(given.get("type")))
    found = {key: value for key, value in given.items() if key in KEYWORDS}
    found.pop("type", None)
    if kind in JSON_TYPES:
        found["type"] = kind
    if isinstance(given.get("properties"), dict):
        found["properties"] = {name: schema_of(one) for name, one in given["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(given.get(key), dict):
            found[key] = schema_of(given[key])
    return found


def data_folder() -> Path:
    """Return the folder of the cases. They are data in BFCL's wheel, whose own program needs forty packages."""
    folder: Path = HOME / "bfcl"
    if not (folder / "bfcl_eval").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps"]
        subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
        (wheel,) = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
    return folder / "bfcl_eval" / "data"


def cases(category: str, limit: int) -> list[Case]:
    """Return cases drawn from a category, the same at each run; those of several turns by their first."""
    folder = data_folder()
    lines = (folder / f"BFCL_v4_{category}.json").read_text(encoding="utf-8").splitlines()
    drawn = lines if len(lines) <= limit else random.Random(category).sample(lines, limit)
    return [_case(json.loads(line), folder) for line in drawn]


def _case(line: Json, folder: Path) -> Case:
    described = line.get("function") or [one for name in line["involved_classes"] for one in _class(name, folder)]
    functions, tools = {}, []
    for one in described:
        parameters = schema_of(one["parameters"])
        functions[one["name"]] = parameters
        shown = {"name": one["name"], "description": one["description"], "parameters": parameters}
        tools.append({"type": "function", "function": shown})
    return Case(line["id"], line["question"][0], functions, tools)


_CLASSES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}


def _class(name: str, folder: Path) -> Iterator[Json]:
    path = folder / "multi_turn_func_doc" / f"{_CLASSES[name]}.json"
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def ask(client: httpx.Client, model: str, case: Case, mode: Mode) -> tuple[int, Json]:
    """Return the status, and the choice or the error. Under auto the answer is streamed and joined."""
    body = {"model": model, "messages": case.messages, "tools": case.tools, "tool_choice": mode, "temperature": 0}
    body |= {"max_tokens": MAX_TOKENS, "stream": mode == "auto", "parallel_tool_calls": "parallel" in case.id}
    answer = client.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]
    return 200, _joined(answer.text) if mode == "auto" else answer.json()["choices"][0]


def _joined(stream: str) -> Json:
    calls: dict[int, Json] = {}
    text, reason = "", None
    for line in stream.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        (choice,) = json.loads(line.removeprefix("data: "))["choices"]
        reason = choice["finish_reason"] or reason
        text += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            joined = calls.setdefault(call["index"], {"function": {"name": "", "arguments": ""}})
            for key in ("name", "arguments"):
                joined["function"][key] += call["function"].get(key) or ""
    return {"message": {"content": text, "tool_calls": list(calls.values())}, "finish_reason": reason}


def judge(case: Case, mode: Mode, status: int, answer: Json, tally: Tally) -> None:
    tally.cases += 1
    if status != 200:
        tally.refused[answer["message"]] += 1
        return
    calls = answer["message"].get("tool_calls") or []
    is_cut_off = answer["finish_reason"] == "length"
    tally.calls += len(calls)
    tally.called += bool(calls)
    tally.texts += not calls
    tally.cut_off += is_cut_off
    if mode == "required" and not calls and not is_cut_off:
        tally.wrong.append(f"{case.id}: required, and there is no call")
    for number, call in enumerate(calls):
        if not (is_cut_off and number == len(calls) - 1):
            tally.wrong += [f"{case.id}: {mistake}" for mistake in mistakes(case, call["function"])]
    if (answer["finish_reason"] == "tool_calls") != bool(calls) and not is_cut_off:
        tally.wrong.append(f"{case.id}: {len(calls)} calls, and it ended by {answer['finish_reason']}")


def mistakes(case: Case, call: Json) -> list[str]:
    if call["name"] not in case.functions:
        return [f"{call['name']!r} is no function of the case"]
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        return [f"arguments are no JSON: {call['arguments'][:200]!r}"]
    validator = jsonschema.Draft202012Validator(case.functions[call["name"]])
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(arguments)]


def run(model: str, categories: Sequence[str], limit: int, *arguments: str) -> dict[tuple[str, Mode], Tally]:
    """Ask a server of the model for all cases, a few at once."""
    found: dict[tuple[str, Mode], Tally] = {}
    served = (model, "--served-model-name", model, "--max-model-len", "8192", *arguments)
    with (
        Server(*served) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=600) as client,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        for category in categories:
            drawn = cases(category, limit)
            for mode in ("auto", "required"):
                tally = found[category, mode] = Tally()
                answers = pool.map(lambda case, mode=mode: ask(client, model, case, mode), drawn)
                for case, (status, answer) in zip(drawn, answers, strict=True):
                    judge(case, mode, status, answer, tally)
                log_line(f"{category}, {mode}: {tally.called} of {tally.cases} called, {len(tally.wrong)} wrong")
    return found


def body(found: dict[tuple[str, Mode], Tally], model: str) -> str:
    rows = [
        (category, mode, t.cases, t.called, t.calls, t.texts, t.cut_off, t.refused.total(), len(t.wrong))
        for (category, mode), t in found.items()
    ]
    head = ("category", "tool_choice", "cases", "with calls", "calls", "texts", "cut off", "refused", "wrong")
    total = Tally()
    for one in found.values():
        total.refused += one.refused
        total.wrong += one.wrong
    refusals = [f"- {count} × {message}" for message, count in total.refused.most_common(8)]
    wrong = [f"- {one}" for one in total.wrong[:12]]
    notes = [
        f"Answers of {model} to BFCL's cases. *Wrong*: an answer that does not parse, a call of an unknown function, "
        "or arguments that its schema refuses. *Cut off*: by max_tokens, within the last call or text.",
        *(["Refused, by message:\n\n" + "\n".join(refusals)] if refusals else []),
        *(["Wrong:\n\n" + "\n".join(wrong)] if wrong else []),
    ]
    return "\n\n".join([notes[0], table(head, rows), *notes[1:]])


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges bfcl", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="(default smollm2)")
    parser.add_argument("--cases", type=int, default=16, help="at most of each category (default 16)")
    parser.add_argument("--categories", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results/judges.md")
    arguments = parser.parse_args(given)
    report = body(run(arguments.model, arguments.categories, arguments.cases), arguments.model)
    print(report)
    if arguments.write:
        command = f"python -m benchmarks.judges bfcl --model {arguments.model} --cases {arguments.cases}"
        write_section(f"bfcl {arguments.model}", f"BFCL's tool calls: {arguments.model}", command, report)


if __name__ == "__main__":
    main()
