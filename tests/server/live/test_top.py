"""`inflight top` against real servers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

from server.conftest import Server


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inflight.cli", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_one_look_is_printed_where_there_is_no_terminal(server: Server) -> None:
    result = top(server.url)
    assert result.returncode == 0 and not result.stderr
    assert "built-in" in result.stdout and "live" in result.stdout and "KV held" in result.stdout


def test_keys_are_asked_for(keyed: Server) -> None:
    for key in ([], ["--api-key", "wrong"]):
        result = top(keyed.url, *key)
        assert result.returncode == 1 and "key" in result.stderr.lower() and "Traceback" not in result.stderr
    result = top(keyed.url, "--api-key", "sk-acme")
    assert result.returncode == 0 and "requests of acme" in result.stdout


def test_a_server_without_the_feed_is_reported() -> None:
    result = top("http://127.0.0.1:9")
    assert result.returncode == 1 and "Nothing comes from" in result.stderr


def test_in_a_terminal_it_goes_on_until_a_key_ends_it(server: Server) -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "inflight.cli", "top", server.url]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm-256color"})
    os.close(its)
    seen, end = b"", time.monotonic() + 30
    while b"built-in" not in seen and time.monotonic() < end:
        seen += os.read(ours, 65536)
    assert b"built-in" in seen
    os.write(ours, b" ")
    while b"paused" not in seen and time.monotonic() < end:
        seen += os.read(ours, 65536)
    assert b"paused" in seen
    os.write(ours, b"q")
    while process.poll() is None and time.monotonic() < end:
        try:
            os.read(ours, 65536)
        except OSError:
            break
    assert process.wait(10) == 0
    os.close(ours)
