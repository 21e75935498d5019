"""An engine's process as the server sees it: it ends in time, and its end is reported once, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.server.processes.worker import Worker

PROGRAM = """
import os, signal, socket, sys
from pathlib import Path
import msgspec
from inflight.limited_process import receive, send
from inflight.server.processes.messages import encode
from inflight.server.processes.worker_messages import EngineReady, Failed
control = socket.socket(fileno=int(sys.argv[1]))
receive(control)
"""

End = Callable[..., str]


@pytest.fixture
def end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> End:
    """Return a function that runs a process with these lines, and returns why it has ended."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(lines: str, ending_seconds: float = 60.0) -> str:
        (tmp_path / "a_program.py").write_text(PROGRAM + lines, encoding="utf-8")

        async def main() -> str:
            worker = Worker("a_program", (), ending_seconds)
            worker.start(b"", dropped=lambda client: None)
            why = await asyncio.wait_for(asyncio.shield(worker.ended), 30)
            assert not worker.is_alive and worker._control._writer is not None
            assert worker._control._writer.is_closing(), "its descriptor is closed"
            return why

        return asyncio.run(main())

    return run


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('send(control, encode(Failed("It broke.")))\nsignal.pause()', "It broke."),
        ("control.close()\nsignal.pause()", "SIGKILL"),
    ],
    ids=["failed", "closed"],
)
def test_one_that_hangs_at_its_end_is_killed(end: End, lines: str, why: str) -> None:
    assert why in end(lines, 0.1)


def test_one_that_sends_no_message_is_killed(end: End) -> None:
    assert "invalid message" in end(r'send(control, b"\xc1")' + "\nsignal.pause()")


@pytest.mark.parametrize(
    ("lines", "how"),
    [
        ("os._exit(9)", "ended with exit code 9"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", "was killed by signal "),  # most of these have no names
    ],
)
def test_its_end_is_reported_by_code_or_signal(end: End, lines: str, how: str) -> None:
    assert f"The engine process {how}" in end(lines)


def test_its_socket_is_removed(end: End, tmp_path: Path) -> None:
    address = tmp_path / "engine-0"
    address.touch()
    end(f'send(control, encode(EngineReady("ipc://{address}", msgspec.Raw(b"\\x80"), (), 1)))')
    assert not address.exists()
