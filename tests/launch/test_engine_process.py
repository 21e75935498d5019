"""An engine's process answers every question of the server, and says why it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct

from inflight.launch import engine_process
from inflight.launch.engine_process import EngineProcess
from inflight.server.processes.control import Control
from inflight.server.processes.counts import NotAsked
from inflight.server.processes.messages import (
    AdapterChanged,
    AskPage,
    LoadAdapter,
    Page,
    UnloadAdapter,
)
from inflight.server.processes.worker_messages import EngineReady, FromWorker, decode_from_worker


class Broken(EngineProcess):
    """It changes no adapter, and counts nothing."""

    async def load(self) -> Any:
        bridge = SimpleNamespace(stopped=None, close=lambda: None)
        return SimpleNamespace(bridge=bridge, metrics=None, described=SimpleNamespace(adapters=()), page=self._text)

    async def _text(self) -> tuple[bytes, str]:
        return b"page", "text/plain"

    async def change_adapter(self, message: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        raise OSError("No such device")


Answer = Callable[[Control[FromWorker], FromWorker], None]


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, answer: Answer) -> int:
    """Run a process until the answers to its messages end it; return its exit code."""
    monkeypatch.setattr(engine_process, "encode_description", lambda described: b"\x80")
    monkeypatch.setattr(engine_process.gc, "freeze", lambda: None)

    async def main() -> int:
        ours, theirs = socket.socketpair()
        setup: Any = SimpleNamespace(folder=folder, serial=0, nbytes=1)
        control = Control(ours, decode_from_worker)
        listening = asyncio.ensure_future(control.listen(lambda message: answer(control, message)))
        code = await asyncio.wait_for(Broken(setup).run(theirs), 20)
        control.close()
        await listening
        return code

    return asyncio.run(main())


def test_every_question_is_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers: list[Struct] = []

    def answer(control: Control[FromWorker], message: FromWorker) -> None:
        match message:
            case EngineReady():
                control.send(LoadAdapter(3, "a", Path("a")))
            case AdapterChanged():
                control.send(NotAsked("rate_limit_exceeded"))
                control.send(AskPage(4))
            case _:
                control.close()
        answers.append(message)

    assert run(monkeypatch, tmp_path, answer) == 0
    _, changed, page = answers
    assert isinstance(changed, AdapterChanged) and changed.question == 3 and changed.param is None
    assert changed.error is not None and "No such device" in changed.error
    assert page == Page(4, b"page", "text/plain"), "a count that fails does not end the engine"


def test_what_is_no_message_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert run(monkeypatch, tmp_path, lambda control, message: control.send_encoded(b"\xc1")) == 1
    assert "could not read a message of the server" in caplog.text
