"""The playground in a browser: conversations, what a user may do with them, and what must not happen to him."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Server
from text_models import write_embedder

from inflight.build import BUILT_IN

from .browser_model import ANSWER, MARKUP, PROGRAM, SLOW
from .clients import ForeignClient
from .environments import Environment

pytestmark = pytest.mark.foreign
CLIENT = "browser"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
KEY = "sk-of-the-playground"
QUESTION = "What is a KV block?"
HOSTILE_NAME = "<img src=x onerror=document.title='owned'>"
ANSWERED, TEXT = ".assistant[aria-busy=false]", ".assistant > .text"


@pytest.fixture(scope="module")
def browser(environment: Environment) -> Iterator[ForeignClient]:
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no Chromium on PATH")
    started = ForeignClient(environment)
    yield started
    started.close()


@pytest.fixture(scope="module")
def quick() -> Iterator[Server]:
    running = Server("--served-model-name", HOSTILE_NAME, program=PROGRAM).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    running = Server(program=SLOW).ready()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    running = Server("--api-key", KEY).ready()
    yield running
    running.stop()


@pytest.fixture
def page(browser: ForeignClient, quick: Server) -> Iterator[ForeignClient]:
    """Ready to be asked; it never complains, and asks no other than its server."""
    browse(browser, quick)
    yield browser
    heard = browser.call("heard")
    assert not heard["complaints"]
    assert all(one["url"].startswith((quick.url, "data:")) for one in heard["requests"])


def browse(browser: ForeignClient, server: Server, **settings: Any) -> None:
    browser.call("browse", url=f"{server.url}/playground", **settings)
    browser.call("wait", selector="#ask", enabled=True)


def ask(browser: ForeignClient, question: str, answers: int = 1) -> None:
    """By the keyboard; until so many answers have ended."""
    browser.call("fill", selector="#question", text=question)
    browser.call("press", selector="#question", key="Enter")
    browser.call("wait", selector=ANSWERED, count=answers)


def last_body(browser: ForeignClient) -> dict[str, Any]:
    asked = [one for one in browser.call("heard")["requests"] if one["url"].endswith("/v1/chat/completions")]
    body: dict[str, Any] = json.loads(asked[-1]["body"])
    return body


def plain(server: Server, messages: list[dict[str, str]], **settings: Any) -> str:
    answer = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **settings})
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_a_conversation(page: ForeignClient, quick: Server) -> None:
    page.call("fill", selector="#set-temperature", text="0")
    ask(page, QUESTION)
    said = [{"role": "user", "content": QUESTION}]
    first = plain(quick, said)
    assert page.call("contents", selector=TEXT) == [first]
    ask(page, "And a lane?", answers=2)
    said += [{"role": "assistant", "content": first}, {"role": "user", "content": "And a lane?"}]
    assert page.call("contents", selector=TEXT) == [first, plain(quick, said)]
    assert last_body(page)["messages"] == said
    assert "".join(page.call("contents", selector="#announcer p")).count(first[:30]) == 1, "heard once"


def test_settings_are_sent_and_what_is_left_alone_is_not(page: ForeignClient) -> None:
    ask(page, QUESTION)
    result = {"model", "messages", "stream", "stream_options", "timings", "logprobs", "top_logprobs"}
    assert set(last_body(page)) == result
    values = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 12}
    values |= {"presence_penalty": 0.5, "frequency_penalty": -0.3, "repetition_penalty": 1.1}
    for name, value in values.items():
        page.call("fill", selector=f"#set-{name}", text=str(value))
    page.call("fill", selector="#seed", text="7")
    page.call("fill", selector="#system", text="Be brief.")
    page.call("choose", selector="#lane", value="batch")
    page.call("click", selector="#colours")
    ask(page, "And a lane?", answers=2)
    body = last_body(page)
    assert {name: body[name] for name in values} == values
    assert (body["seed"], body["service_tier"]) == (7, "flex") and "logprobs" not in body
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "lane batch" in " ".join(page.call("texts", selector=".brief")[-1].split())
    assert "It ends at max_tokens" in page.call("texts", selector=".problem")[-1]
    page.call("click", selector="[aria-label='Temperature: as the model has it']")
    page.call("click", selector=".assistant button:text('Regenerate')")
    page.call("wait", selector=ANSWERED, count=2)
    assert "temperature" not in last_body(page)


def test_what_the_server_refuses_and_what_the_field_does(page: ForeignClient) -> None:
    assert page.call("attributes", selector="#priority", name="placeholder") == ["not used with this policy"]
    ask(page, "too long " * 3000)
    assert "maximum context length" in page.call("texts", selector=".problem.bad")[0]
    page.call("fill", selector="#set-temperature", text="9")
    page.call("fill", selector="#question", text="And now?")
    page.call("press", selector="#question", key="Enter")
    assert page.call("texts", selector="#notice")[0].startswith("Temperature: ")
    (result,) = page.call("heard")["complaints"]
    assert "status of 400" in result, "what the browser says by itself of such an answer"
    page.call("forget")


def test_tokens_and_what_might_have_stood_there(page: ForeignClient) -> None:
    page.call("fill", selector="#set-temperature", text="2")
    page.call("fill", selector="#seed", text="5")
    ask(page, QUESTION)
    levels = page.call("attributes", selector=".token", name="data-level")
    assert set(levels) <= set("012345") and len(set(levels)) > 1
    assert "".join(page.call("contents", selector=".token")) == page.call("contents", selector=TEXT)[0]
    assert page.call("attributes", selector=".token", name="tabindex").count("0") == 1, "one stop for the keyboard"
    colours = page.call("styles", selector=f".token[data-level='{max(levels)}']", name="background-color")
    assert "rgba(0, 0, 0, 0)" not in colours
    page.call("press", selector=".token", key="ArrowRight")
    rows = page.call("texts", selector="#alternatives tr")
    assert len(rows) == 5 and all("%" in row for row in rows)
    assert page.call("focused")["text"] == page.call("contents", selector=".token")[1]
    assert page.call("attributes", selector=".token:nth-of-type(2)", name="aria-describedby") == ["alternatives"]
    page.call("keys", pressed=["Escape"])
    assert page.call("visible", selector="#alternatives") == [False]
    page.call("hover", selector=".token")
    assert page.call("visible", selector="#alternatives") == [True]


def test_an_answer_goes_on_behind_another_token(page: ForeignClient, quick: Server) -> None:
    page.call("fill", selector="#set-temperature", text="0")
    ask(page, QUESTION)
    ask(page, "And a lane?", answers=2)
    page.call("press", selector=".token", key="ArrowRight")
    page.call("keys", pressed=["Enter"])
    assert page.call("attributes", selector="#alternatives", name="role") == ["dialog"]
    offered = page.call("texts", selector="#alternatives button")
    assert len(offered) == 4, "all but the one that is there"
    assert page.call("focused")["text"] == offered[0]
    begins = page.call("contents", selector=".token")[0] + offered[0].replace("␣", " ")
    page.call("keys", pressed=["Enter"])
    page.call("wait", selector=ANSWERED, count=1)
    (answer,) = page.call("contents", selector=TEXT)
    said = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": begins}]
    goes_on = plain(quick, said, continue_final_message=True, add_generation_prompt=False)
    assert answer == begins + goes_on and page.call("contents", selector=".given") == [begins]
    ask(page, "And now?", answers=2)
    assert last_body(page)["messages"][1] == {"role": "assistant", "content": answer}


def test_the_account_of_time(page: ForeignClient) -> None:
    ask(page, QUESTION)
    (said,) = page.call("attributes", selector=".account", name="aria-label")
    assert "prompt " in said and "answer " in said
    brief = " ".join(page.call("texts", selector=".brief")[0].split())
    for words in ("first token", "tokens/s", "answer", "prompt", "lane interactive"):
        assert words in brief
    page.call("click", selector=".times summary")
    assert page.call("texts", selector=".parts li")


def test_asked_again_edited_copied_and_begun_anew(page: ForeignClient, quick: Server) -> None:
    page.call("fill", selector="#set-temperature", text="0")
    ask(page, QUESTION)
    page.call("click", selector=".assistant button:text('Copy')")
    page.call("wait", selector=".assistant .acts", text="Copied")
    assert page.call("clipboard") == page.call("contents", selector=TEXT)[0]
    ask(page, "And a lane?", answers=2)
    page.call("click", selector=".user button:text('Edit')")
    page.call("fill", selector=".edit textarea", text="What is a chunk?")
    page.call("press", selector=".edit textarea", key="Enter")
    page.call("wait", selector=ANSWERED, count=1)
    assert page.call("texts", selector=".user > .text") == ["What is a chunk?"]
    assert page.call("contents", selector=TEXT) == [plain(quick, [{"role": "user", "content": "What is a chunk?"}])]
    page.call("click", selector="#anew")
    page.call("wait", selector=".message", count=0)
    assert page.call("visible", selector="#hello") == [True]


def test_what_a_model_writes_and_is_called_is_text(page: ForeignClient) -> None:
    assert page.call("contents", selector="#model-pick option") == [HOSTILE_NAME]
    ask(page, MARKUP)
    assert page.call("contents", selector=TEXT) == [ANSWER]
    assert "😀" in page.call("contents", selector=".token"), "a character of several tokens is one stretch"
    for made in ("#turns img", "#turns script", "#turns a", "#turns b:not(.brief b):not(.parts b)", "#model-pick img"):
        page.call("wait", selector=made, count=0)
    ask(page, HOSTILE_NAME, answers=2)
    assert page.call("contents", selector=".user > .text")[-1] == HOSTILE_NAME
    assert page.call("title") == "Playground · inflight"


def test_by_the_keyboard_alone(page: ForeignClient) -> None:
    page.call("fill", selector="#set-temperature", text="0")
    page.call("press", selector="#set-temperature", key="Shift+Tab")
    assert page.call("focused")["tag"] == "INPUT", "its slider"
    page.call("keys", pressed=["ArrowRight", "ArrowRight"])
    assert page.call("attributes", selector="#set-temperature", name="id")
    page.call("press", selector="#question", key="Tab")
    assert page.call("focused")["id"] == "ask"
    page.call("fill", selector="#question", text=QUESTION)
    page.call("press", selector="#question", key="Shift+Enter")
    page.call("wait", selector=".message", count=0)
    page.call("press", selector="#question", key="Enter")
    page.call("wait", selector=ANSWERED, count=1)
    assert last_body(page)["temperature"] == 0.1, "two steps of the slider"


def test_an_answer_that_is_stopped_ends_on_the_server_too(browser: ForeignClient, slow: Server) -> None:
    browse(browser, slow)
    browser.call("fill", selector="#question", text=QUESTION)
    browser.call("press", selector="#question", key="Enter")
    browser.call("wait", selector=".token:nth-of-type(4)")
    assert browser.call("attributes", selector=".assistant", name="aria-busy") == ["true"]
    assert slow.metric("inflight_sequences_running") == 1
    browser.call("click", selector="#ask")
    browser.call("wait", selector=ANSWERED)
    assert browser.call("texts", selector=".problem") == ["You stopped it."]
    assert browser.call("contents", selector=TEXT)[0]
    assert slow.settled(lambda: slow.metric("inflight_sequences_running") == 0)
    assert not browser.call("heard")["complaints"]


def test_an_error_in_the_middle_of_an_answer_is_reported(browser: ForeignClient) -> None:
    server = Server("--request-timeout", "1.5", program=SLOW).ready()
    try:
        browse(browser, server)
        ask(browser, QUESTION)
        (result,) = browser.call("texts", selector=".problem.bad")
        assert "1.5 s" in result and browser.call("contents", selector=TEXT)[0], "what came until then stays"
        assert browser.call("texts", selector=".assistant button") == ["Copy", "Regenerate"]
        assert not browser.call("heard")["complaints"]
    finally:
        server.stop()


def test_keys(browser: ForeignClient, guarded: Server) -> None:
    browser.call("browse", url=f"{guarded.url}/playground")
    browser.call("wait", selector="dialog[open]")
    browser.call("fill", selector="#key-text", text="sk-wrong")
    browser.call("press", selector="#key-text", key="Enter")
    browser.call("wait", selector="#key-why", text="That key is not known here")
    browser.call("wait", selector="dialog[open]")
    browser.call("fill", selector="#key-text", text=KEY)
    browser.call("press", selector="#key-text", key="Enter")
    browser.call("wait", selector="#ask", enabled=True)
    ask(browser, QUESTION)
    assert browser.call("contents", selector=TEXT)[0]
    assert browser.call("stored") == {"cookie": ""}, "it is in the page's memory alone"
    asked = [one for one in browser.call("heard")["requests"] if "/v1/" in one["url"]]
    assert {one["headers"].get("authorization") for one in asked} == {None, "Bearer sk-wrong", f"Bearer {KEY}"}
    assert not any("sk-" in one["url"] or "sk-" in (one["body"] or "") for one in asked)
    browser.call("click", selector="#key-change")
    browser.call("fill", selector="#key-text", text=KEY)
    browser.call("click", selector="#key-kept")
    browser.call("press", selector="#key-text", key="Enter")
    browser.call("wait", selector="dialog[open]", count=0)
    assert browser.call("stored") == {"inflight-key": KEY, "cookie": ""}, "the tab's, because it was asked for"


def test_a_server_that_is_killed_and_comes_back(browser: ForeignClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    first = Server("--port", port, program=SLOW).ready()
    browse(browser, first)
    browser.call("fill", selector="#question", text=QUESTION)
    browser.call("press", selector="#question", key="Enter")
    browser.call("wait", selector=".token:nth-of-type(3)")
    first.lose_power()
    browser.call("wait", selector=ANSWERED)
    assert browser.call("texts", selector=".problem.bad")[0].startswith("The connection broke off")
    assert browser.call("contents", selector=TEXT)[0], "what came until then stays"
    browser.call("wait", selector="#status-text", text="no answer from the server")
    second = Server("--port", port, program=PROGRAM).ready()
    try:
        browser.call("wait", selector="#status-text", text="ready")
        browser.call("click", selector=".assistant button:text('Regenerate')")
        browser.call("wait", selector=ANSWERED)
        assert browser.call("visible", selector=".problem") == [False]
    finally:
        second.stop()


def test_the_servers_own_lanes_and_where_a_priority_means_something(
    browser: ForeignClient, start: Callable[..., Server], tmp_path: Path
) -> None:
    config = tmp_path / "lanes.toml"
    lanes = '[lanes.vip]\npolicy = "priority"\nweight = 2\n[lanes.night]\nbackground = true\n'
    config.write_text(lanes, encoding="utf-8")
    server = start("--config", str(config))
    browser.call("browse", url=f"{server.url}/playground")
    browser.call("wait", selector="#ask", enabled=True)
    offered = browser.call("contents", selector="#lane option")
    assert offered == ["interactive", "batch: background", "vip", "night: background"]
    assert browser.call("attributes", selector="#priority", name="disabled") == [""]
    browser.call("choose", selector="#lane", value="vip")
    assert browser.call("attributes", selector="#priority", name="disabled") == [None]
    browser.call("fill", selector="#priority", text="3")
    ask(browser, QUESTION)
    sent = [one for one in browser.call("heard")["requests"] if one["url"].endswith("/v1/chat/completions")][-1]
    assert sent["headers"]["x-llm-d-inference-objective"] == "vip"
    body = json.loads(sent["body"])
    assert body["priority"] == 3 and "service_tier" not in body
    assert "lane vip" in " ".join(browser.call("texts", selector=".brief")[-1].split())


def test_nothing_to_chat_with(browser: ForeignClient, start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--model", str(write_embedder(tmp_path / "embedder")), "--served-model-name", "vectors")
    browser.call("browse", url=f"{server.url}/playground")
    browser.call("wait", selector="#notice", text="There is nothing to chat with here: vectors makes vectors of texts")
    assert "nothing to chat with" in browser.call("texts", selector="#status")[0]


def test_a_model_without_a_chat_template_continues_texts(
    browser: ForeignClient, start: Callable[..., Server], tmp_path: Path
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(BUILT_IN, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": None}), encoding="utf-8")
    server = start("--model", str(folder), "--served-model-name", "base")
    browser.call("browse", url=f"{server.url}/playground")
    browser.call("wait", selector="#hello", text="This model has no chat template: it continues your text.")
    browser.call("fill", selector="#question", text="Continuous batching")
    browser.call("click", selector="#ask")
    browser.call("wait", selector=ANSWERED)
    sent = [one for one in browser.call("heard")["requests"] if one["url"].endswith("/v1/completions")][-1]
    assert json.loads(sent["body"])["prompt"] == "Continuous batching"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_fits(browser: ForeignClient, quick: Server, width: int, dark: bool) -> None:
    browse(browser, quick, width=width, dark=dark)
    ask(browser, MARKUP)
    found = browser.call("widths")
    assert found["content"] <= found["screen"] == width
    small = width < 900
    assert browser.call("visible", selector="#settings") == [not small]
    if small:
        browser.call("click", selector="#settings-show")
        assert browser.call("visible", selector="#settings") == [True]
        browser.call("click", selector="#settings-hide")
        assert browser.call("visible", selector="#settings") == [False]
    browser.call("hover", selector=".token")
    assert browser.call("widths")["content"] <= width
    assert not browser.call("heard")["complaints"]
