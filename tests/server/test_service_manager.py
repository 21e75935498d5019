"""Reports to systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.server.service_manager import ServiceManager

from .conftest import Server, children


def test_a_server_reports_its_states(start: Callable[..., Server], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[acme]\nkey = "sk-acme"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}

        messages: queue.SimpleQueue[str] = queue.SimpleQueue()

        def read() -> None:
            with contextlib.suppress(OSError):
                while True:
                    messages.put(manager.recv(4096).decode())

        def next_of(prefix: str) -> str:
            """Return the next message that begins so."""
            seen = []
            end = time.monotonic() + 60
            while time.monotonic() < end:
                seen.append(messages.get(timeout=60))
                if seen[-1].startswith(prefix):
                    return seen[-1]
            raise AssertionError(seen)

        threading.Thread(target=read, daemon=True).start()
        server = start("--api-keys-file", str(keys), env=environment)
        assert next_of("READY") == f"READY=1\nSTATUS=Ready at {server.url}."
        assert next_of("WATCHDOG") == "WATCHDOG=1"
        server.process.send_signal(signal.SIGHUP)
        assert next_of("RELOADING").startswith("RELOADING=1\nMONOTONIC_USEC=") and next_of("READY")
        [engine] = children(server, "inflight.launch.engine_process")
        os.kill(engine, signal.SIGKILL)
        assert next_of("STATUS") == "STATUS=Starting the engine again." and next_of("READY")
        server.process.send_signal(signal.SIGTERM)
        assert next_of("STOPPING") and server.process.wait(30) == 0


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "what")
    manager = ServiceManager()
    manager.ready("http://nowhere")
    asyncio.run(manager.keep_watchdog())
    assert manager.watchdog_seconds == 0


def test_a_manager_that_is_gone_disturbs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    ServiceManager().stopping()
    assert "NOTIFY_SOCKET" not in os.environ
