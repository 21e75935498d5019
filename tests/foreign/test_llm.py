"""Simon Willison's `llm`: at the command line as people use it, and as a library; over chat and over Responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Server

from .cases import KEY, MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TEXT, TOO_LONG, USER, plain_chat, plain_completion
from .clients import ForeignClient
from .environments import Environment
from .scripted import IS_WARM, IS_WARM_AND_LARGE, THINK, WARM, WARM_AND_LARGE
from .tap import Tap

pytestmark = pytest.mark.foreign
CLIENT = "llm"
apis = pytest.mark.parametrize("api", ["chat", "responses"])
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
LIMIT = 400  # within which answers end: of one that was cut this client logs no usage, where it streams Responses
BRIEF = ("-s", "You are brief.", "-o", "temperature", "0", "-o", "max_tokens", str(LIMIT))
FUNCTIONS = """
def weather(city: str) -> str:
    "The weather of a city."
    return "21 degrees"

def inhabitants(city: str) -> str:
    "How many live in a city."
    return "440 thousand people"
"""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Bern", "Zug"]}, "inhabitants": {"type": "integer", "minimum": 1, "maximum": 999}},
    "required": ["name", "inhabitants"],
    "additionalProperties": False,
}
Client = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, environment: Environment, tap: Tap, agent_tap: Tap) -> Path:
    """All that this client keeps: its models, its key, and what was asked and answered."""
    found = tmp_path_factory.mktemp("llm")
    kinds: dict[str, dict[str, Any]] = {"chat": {}, "responses": {"responses": True}, "text": {"completion": True}}
    models = [
        {
            "model_id": f"{model}-{name}",
            "model_name": model,
            "api_base": f"{where.url}/v1",
            "api_key_name": "inflight",
            **({} if name == "text" else {"supports_tools": True, "supports_schema": True}),
            **kind,
        }
        for model, where in ((MODEL, tap), (SCRIPTED_MODEL, agent_tap))
        for name, kind in kinds.items()
    ]
    (found / "extra-openai-models.yaml").write_text(json.dumps(models), encoding="utf-8")  # which is YAML, too
    environment.run("llm", "keys", "set", "inflight", "--value", KEY, LLM_USER_PATH=str(found))
    return found


@pytest.fixture(scope="module")
def llm(environment: Environment, folder: Path) -> Client:
    """The command line."""

    def run(*arguments: str) -> str:
        return environment.run("llm", *arguments, LLM_USER_PATH=str(folder)).strip()

    return run


@pytest.fixture(scope="module")
def library(environment: Environment, folder: Path) -> Iterator[ForeignClient]:
    started = ForeignClient(environment, LLM_USER_PATH=str(folder))
    yield started
    started.close()


def how(stream: bool) -> list[str]:
    return [] if stream else ["--no-stream"]


@apis
@both
def test_a_prompt_and_what_goes_on_from_it(llm: Client, foreign_server: Server, api: str, stream: bool) -> None:
    first = plain_chat(foreign_server, max_tokens=LIMIT)
    assert llm("-m", f"{MODEL}-{api}", QUESTION, *BRIEF, *how(stream)) == first
    (logged,) = json.loads(llm("logs", "list", "-n", "1", "--json"))
    assert logged["response"] == first and logged["input_tokens"] > 0 and 0 < logged["output_tokens"] <= LIMIT
    plain = [*MESSAGES, {"role": "assistant", "content": first}, USER]
    assert llm("-c", QUESTION, *BRIEF, *how(stream)) == plain_chat(foreign_server, plain, max_tokens=LIMIT)


@apis
def test_nothing_but_a_model(llm: Client, api: str) -> None:
    """With the settings that the client chooses by itself."""
    assert llm("-m", f"{MODEL}-{api}", QUESTION)


def test_completions(llm: Client, foreign_server: Server) -> None:
    asked = ("-m", f"{MODEL}-text", TEXT, "-o", "temperature", "0", "-o", "max_tokens", "16")
    assert llm(*asked) == llm(*asked, "--no-stream") == plain_completion(foreign_server).strip()


@apis
@both
def test_tools_are_run_until_the_answer(llm: Client, api: str, stream: bool) -> None:
    asked = ("-m", f"{SCRIPTED_MODEL}-{api}", "--functions", FUNCTIONS, *how(stream))
    assert llm(*asked, WARM).endswith(IS_WARM)
    assert llm(*asked, WARM_AND_LARGE).endswith(IS_WARM_AND_LARGE)
    steps = json.loads(llm("logs", "list", "-n", "2", "--json"))
    results = {one["name"]: one["output"] for step in steps for one in step["tool_results"]}
    assert results == {"weather": "21 degrees", "inhabitants": "440 thousand people"}


@apis
@both
def test_tools_of_the_library(library: ForeignClient, api: str, stream: bool) -> None:
    result = library.call("run_tools", model=f"{SCRIPTED_MODEL}-{api}", prompt=WARM_AND_LARGE, stream=stream)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER] and result["text"].endswith(IS_WARM_AND_LARGE)


@apis
def test_a_conversation_of_the_library(library: ForeignClient, foreign_server: Server, api: str) -> None:
    texts = library.call("converse", model=f"{MODEL}-{api}", prompts=[QUESTION] * 2, temperature=0, max_tokens=16)
    first = plain_chat(foreign_server)
    assert texts == [first, plain_chat(foreign_server, [*MESSAGES, {"role": "assistant", "content": first}, USER])]


@apis
@both
def test_the_form_of_the_answer_is_the_callers(llm: Client, api: str, stream: bool) -> None:
    """At a temperature at which nothing but the schema can make it so."""
    hot = ("-m", f"{MODEL}-{api}", "-o", "temperature", "1.5", *how(stream), QUESTION)
    made = json.loads(llm(*hot, "--schema", json.dumps(SCHEMA)))
    assert made["name"] in ("Bern", "Zug") and 1 <= made["inhabitants"] <= 999


@apis
def test_what_a_model_thinks_is_not_its_answer(llm: Client, api: str) -> None:
    assert llm("-m", f"{SCRIPTED_MODEL}-{api}", THINK, "-R") == "42"


@apis
def test_errors_are_the_servers_words(llm: Client, api: str) -> None:
    with pytest.raises(AssertionError, match=r"Error: .*context"):
        llm("-m", f"{MODEL}-{api}", TOO_LONG)
    with pytest.raises(AssertionError, match=r"Error: .*(API )?key"):
        llm("-m", f"{MODEL}-{api}", QUESTION, "--key", "sk-wrong")
