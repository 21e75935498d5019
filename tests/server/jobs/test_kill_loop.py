"""The trial of killed servers: what it sums up, and an answer that a death cuts off."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from benchmarks.kill_loop import Tally
from benchmarks.killed_server import Server


def test_a_maximum_is_no_sum() -> None:
    tally = Tally(kills=3, answered=40)
    tally.add(Tally(kills=2, answered=50))
    tally.add(Tally(kills=2, answered=7))
    assert (tally.kills, tally.answered) == (7, 50)


def test_an_answer_that_is_cut_off_is_a_lost_connection(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", tmp_path / "log")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

        thread = threading.Thread(target=answer)
        thread.start()
        server._url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConnectionError):
            server.content("/v1/files/x/content")
        thread.join()
