"""Open WebUI, as published, over a server of ours: what a person does with it, by its own HTTP and in its page.

    python -m benchmarks.judges open-webui --write

Its packages take some minutes to install. SmolLM2 answers, all-MiniLM-L6-v2 embeds; the page is opened by a Chromium
on the path. Nothing is downloaded while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from uuid import uuid4

from benchmarks.chromium import Page, find_chromium, opened_page
from benchmarks.comparison import log_line
from benchmarks.results import table, write_section
from benchmarks.served import Server
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from tests.foreign.environments import Environment

ENVIRONMENT = Environment("judge_open_webui", Path(__file__).parent / "packages" / "open_webui")
MODEL, EMBEDDER = "smollm2:latest", "all-minilm-l6-v2:latest"
MAIL, PASSWORD = "a@example.com", "secret-of-a-test"
DESK, PHONE = (1280, 800), (390, 844)  # pixels
SECONDS = 300  # of one step
# Its own 36 tools are 6,600 tokens before the first word, and SmolLM2 calls them for any question. While a title, tags
# and follow-up questions are generated, which SmolLM2 does at length, an answer is not over.
SMALL_MODEL = {
    "DEFAULT_MODEL_METADATA": '{"capabilities": {"builtin_tools": false}}',
    "ENABLE_FOLLOW_UP_GENERATION": "false",
    "ENABLE_TAGS_GENERATION": "false",
    "ENABLE_TITLE_GENERATION": "false",
    "DEFAULT_MODEL_PARAMS": '{"max_tokens": 1000, "temperature": 0}',
}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NOTES = "The harbour of Genoa opened in 1128. Its lighthouse is called Lanterna. " * 3
_STOP = "document.querySelector('[aria-label*=Stop], [aria-label*=stop], #stop-button')"
_ANSWERS = "[...document.querySelectorAll('#response-content-container')].map(one => one.innerText.trim())"

SETTINGS = (
    "Set in it as a person with a small model would: its 36 built-in tools off, which SmolLM2 calls for any question; "
    "no titles, tags and follow-up questions; temperature 0. The page is 1280 pixels wide, and 390 as a phone's."
)


class WebUI:
    """Open WebUI on a free port, with a folder of its own; use it in `with`. token: of who has signed up."""

    def __init__(self, server_url: str):
        self._folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.token = f"http://127.0.0.1:{port}", ""
        variables = {
            "DATA_DIR": self._folder.name,
            "OFFLINE_MODE": "true",
            "OLLAMA_BASE_URL": server_url,
            "ENABLE_OPENAI_API": "false",
            "RAG_EMBEDDING_ENGINE": "ollama",
            "RAG_EMBEDDING_MODEL": EMBEDDER,
            "ENABLE_VERSION_UPDATE_CHECK": "false",
            "ANONYMIZED_TELEMETRY": "false",
            "WEBUI_SECRET_KEY": "of a test",
            **SMALL_MODEL,
        }
        self._process = subprocess.Popen(
            [ENVIRONMENT.program("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=self._folder.name,
            env=ENVIRONMENT.variables(**variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> WebUI:
        end = time.monotonic() + SECONDS
        while True:
            try:
                urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except (URLError, OSError):
                assert self._process.poll() is None and time.monotonic() < end, "Open WebUI did not start"
                time.sleep(0.5)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def ask(self, path: str, body: Any = None, kind: str = "application/json", method: str | None = None) -> bytes:
        """Return an answer's content, also of an error. body: bytes, or what becomes JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Authorization": f"Bearer {self.token}"}
        try:
            with urlopen(Request(self.url + path, data, headers, method=method), timeout=SECONDS) as answer:
                content: bytes = answer.read()
        except HTTPError as error:
            content = error.read()
        return content

    def json(self, path: str, body: Any = None) -> Any:
        return json.loads(self.ask(path, body))


# -- by its HTTP -------------------------------------------------------------------------------------------------------


def sign_up(ui: WebUI) -> str:
    found = ui.json("/api/v1/auths/signup", {"name": "A", "email": MAIL, "password": PASSWORD})
    ui.token = found["token"]
    return str(found["role"])


def list_models(ui: WebUI) -> str:
    names = {one["id"] for one in ui.json("/api/models")["data"]}
    listed = {one["model"] for one in ui.json("/ollama/api/tags/0")["models"]}
    assert {MODEL, EMBEDDER} <= names and {MODEL, EMBEDDER} <= listed, names
    assert "tools" in ui.json("/ollama/api/show", {"model": MODEL})["capabilities"]
    return f"{MODEL} and {EMBEDDER} among them, with what they can do"


def _chat(ui: WebUI, messages: Sequence[dict[str, str]], **more: Any) -> tuple[str, int]:
    """Return the text of a streamed answer, and its frames."""
    settings = {"max_tokens": 24, "temperature": 0}
    body = {"model": MODEL, "messages": messages, "stream": True, "params": settings, **more}
    content = ui.ask("/api/chat/completions", body).decode()
    assert "data: [DONE]" in content, content[:400]
    frames = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    texts = [frame["choices"][0]["delta"].get("content") or "" for frame in frames if frame.get("choices")]
    usage = [frame["usage"] for frame in frames if frame.get("usage")]
    assert usage and usage[-1]["completion_tokens"] > 0
    return "".join(texts), len(frames)


def two_turns(ui: WebUI) -> str:
    first, frames = _chat(ui, QUESTION)
    history = [*QUESTION, {"role": "assistant", "content": first}, {"role": "user", "content": "And of Italy?"}]
    second, _ = _chat(ui, history)
    assert "Paris" in first and "Rome" in second and frames > 4, (first, second)
    return f"“{first}” “{second}”"


def other_apis(ui: WebUI) -> str:
    short = {"model": MODEL, "max_tokens": 5}
    for path, body, field in (
        ("/ollama/v1/chat/completions", {**short, "messages": QUESTION}, "choices"),
        ("/ollama/v1/completions", {**short, "prompt": "Hi"}, "choices"),
        ("/ollama/v1/messages", {**short, "messages": QUESTION}, "content"),
        ("/ollama/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 16}, "output"),
        ("/ollama/v1/embeddings", {"model": EMBEDDER, "input": "Hi"}, "data"),
        ("/ollama/api/embed", {"model": EMBEDDER, "input": ["a", "b"]}, "embeddings"),
    ):
        found = ui.json(path, body)
        assert found.get(field), (path, found)
    return "chat, completions, messages, responses, embeddings"


def document(ui: WebUI) -> str:
    mark = uuid4().hex
    head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="notes.txt"\r\n'
    form = f"{head}Content-Type: text/plain\r\n\r\n{NOTES}\r\n--{mark}--\r\n".encode()
    number = json.loads(ui.ask("/api/v1/files/", form, f"multipart/form-data; boundary={mark}"))["id"]
    end = time.monotonic() + SECONDS
    while (state := ui.json(f"/api/v1/files/{number}/process/status")["status"]) in ("pending", "processing"):
        assert time.monotonic() < end, state
        time.sleep(0.5)
    assert state == "completed", state
    asked = [{"role": "user", "content": "What is the lighthouse of Genoa called?"}]
    answer, _ = _chat(ui, asked, files=[{"type": "file", "id": number}])
    assert answer
    return f"embedded, found and asked: “{answer}”"


def pulls(ui: WebUI) -> str:
    known = [json.loads(line) for line in ui.ask("/ollama/api/pull", {"model": "smollm2"}).splitlines()]
    assert known[-1] == {"status": "success"}, known[-1]
    unknown = json.loads(ui.ask("/ollama/api/pull", {"model": "nonsense"}).splitlines()[-1])
    assert "nonsense" in unknown["error"]
    return "a model that is there, and one that is nowhere, with the sentence that says so"


def unload(ui: WebUI) -> str:
    assert ui.json("/ollama/api/unload", {"model": MODEL}) == {"status": True}
    _chat(ui, QUESTION)
    return "and loaded again by the next question"


BY_HTTP: dict[str, Callable[[WebUI], str]] = {
    "sign up": sign_up,
    "list models": list_models,
    "chat, streamed, two turns": two_turns,
    "the other APIs that it passes on": other_apis,
    "a document": document,
    "pull": pulls,
    "unload": unload,
}


# -- in its page -------------------------------------------------------------------------------------------------------


async def _fill(page: Page, selector: str, text: str) -> None:
    await page.until(f"!!document.querySelector('{selector}')", 90)
    await page.eval(f"document.querySelector('{selector}').focus()")
    await page.send("Input.insertText", text=text)


async def _ask(page: Page, text: str) -> None:
    await _fill(page, "#chat-input", text)
    await page.until("!!document.querySelector('#send-message-button:not([disabled])')", SECONDS)
    await page.eval("document.querySelector('#send-message-button').click()")


async def in_the_page(ui: WebUI, server: Server, pictures: Path | None) -> list[tuple[str, str]]:
    """Sign in, ask as on a desk and as on a phone, and stop a long answer; return what was done.

    pictures: a folder for one picture a step.
    """

    async def until_running(is_running: bool) -> None:
        end = time.monotonic() + SECONDS
        while True:
            with urlopen(f"http://127.0.0.1:{server.port}/slots", timeout=30) as answer:
                if any(one["is_processing"] for one in json.load(answer)) == is_running:
                    return
            assert time.monotonic() < end, f"{'no' if is_running else 'an'} answer is generated"
            await asyncio.sleep(0.1)

    async def done(step: str, outcome: str) -> None:
        steps.append((f"page: {step}", outcome))
        log_line(f"page: {step}")
        if pictures is not None:
            await page.picture(pictures / f"{len(steps)}-{step.replace(' ', '-')}.png")

    async def answered(number: int) -> str:
        await page.until(f"{_ANSWERS}.length === {number} && {_ANSWERS}[{number - 1}].length > 1", SECONDS)
        await page.until(f"!{_STOP}", SECONDS)
        text: str = await page.eval(f"{_ANSWERS}[{number - 1}]")
        return text

    steps: list[tuple[str, str]] = []
    async with opened_page(*DESK) as page:
        await page.open(f"{ui.url}/auth")
        await _fill(page, "#email", MAIL)
        await _fill(page, "#password", PASSWORD)
        await page.eval("document.querySelector('form button:not([type=button])').click()")
        await page.until("!!document.querySelector('#chat-input')", SECONDS)
        await asyncio.sleep(3)  # what is new is shown once
        await page.eval(
            "[...document.querySelectorAll('[role=dialog] button')]"
            ".filter(one => one.innerText.includes('Okay')).forEach(one => one.click())"
        )
        await done("sign in", f"{MODEL} is chosen")
        await _ask(page, "What is the capital of France?")
        assert "Paris" in (text := await answered(1)), text
        await done("first turn", "answered")
        await page.resize(*PHONE)
        await _ask(page, "And of Italy?")
        assert await answered(2)
        wide = await page.eval("document.documentElement.scrollWidth")
        assert wide <= PHONE[0], f"{wide} pixels on {PHONE[0]}"
        await done("second turn on a phone", f"answered; no wider than {PHONE[0]} pixels")
        await page.resize(*DESK)
        await _ask(page, "Write a story of a thousand words about a lighthouse.")
        await until_running(True)
        await page.until(f"!!{_STOP} && ({_STOP}.click(), true)", SECONDS)
        await until_running(False)
        await done("stop", "its place in the batch is free again")
        await _ask(page, "Thank you.")
        assert await answered(4)
        await done("turn after the stop", "answered")
    return steps


# -- both --------------------------------------------------------------------------------------------------------------


def flows(pictures: Path | None) -> Iterator[tuple[str, str]]:
    """Yield each step and what came of it. pictures: as `in_the_page`. Raises AssertionError where a step fails."""
    ENVIRONMENT.make()
    for name in (MODEL, EMBEDDER):
        pull(CATALOGUE[name.partition(":")[0]])
    arguments = ("--models", "local", "--host", "127.0.0.1")
    with Server(*arguments) as server, WebUI(f"http://127.0.0.1:{server.port}") as ui:
        for step, take in BY_HTTP.items():
            log_line(step)
            yield step, take(ui)
        if find_chromium() is None:
            yield "page", "not opened: no Chromium on the path"
            return
        log_line("page")
        yield from asyncio.run(in_the_page(ui, server, pictures))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges open-webui", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results/judges.md")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="keep a picture of the page after each step")
    arguments = parser.parse_args(given)
    report = f"{SETTINGS}\n\n{table(('step', 'what came of it'), list(flows(arguments.pictures)))}"
    print(report)
    if arguments.write:
        title = "Open WebUI 0.12.4, unmodified, over SmolLM2"
        write_section("open_webui", title, "python -m benchmarks.judges open-webui", report)


if __name__ == "__main__":
    main()
