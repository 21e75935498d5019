"""A foreign client under test: a process in its environment that gets flows to run, and returns what came of them.

Knows nothing of any client: what a flow does stands in the client's `flows.py` (or `flows.cjs`).
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from dataclasses import dataclass
from typing import Any

from .environments import HERE, Environment


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a client raised.

    types: its class and those above it, by name. status, code: HTTP's and the server's, where the client keeps them.
    """

    types: tuple[str, ...]
    message: str
    status: int | None
    code: str | None
    detail: str


class ForeignClient:
    """One process for all flows of a client, because to import some of them takes seconds; another after a hang."""

    def __init__(self, environment: Environment, **variables: str):
        self._environment = environment
        self._variables = variables
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._said: list[str] = []

    def call(self, flow: str, /, *, within: float = 90, **arguments: Any) -> Any:
        """Return the flow's result. Raises AssertionError with the client's traceback when it fails."""
        answer = self._ask(flow, arguments, within)
        assert "error" not in answer, f"{flow}: {answer['error']['detail']}"
        return answer["result"]

    def fail(self, flow: str, /, *, within: float = 90, **arguments: Any) -> Failure:
        """Return the flow's error. Raises AssertionError when it succeeds."""
        answer = self._ask(flow, arguments, within)
        assert "error" in answer, f"{flow} was expected to fail, but returned {answer['result']}"
        error = answer["error"]
        return Failure(tuple(error["types"]), error["message"], error["status"], error["code"], error["detail"])

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def _ask(self, flow: str, arguments: dict[str, Any], within: float) -> dict[str, Any]:
        process = self._process or self._begin()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"flow": flow, "arguments": arguments}) + "\n")
        process.stdin.flush()
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            line = ""
        if not line:
            self.close()
            raise AssertionError(f"{flow} gave no answer within {within} s:\n{''.join(self._said[-40:])}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _begin(self) -> subprocess.Popen[str]:
        node = self._environment.in_node
        self._lines, self._said = queue.Queue(), []
        self._process = subprocess.Popen(
            [
                self._environment.program("node" if node else "python"),
                str(HERE / f"serve_flows.{'cjs' if node else 'py'}"),
                str(self._environment.sources / f"flows.{'cjs' if node else 'py'}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment.variables(**self._variables),
        )
        for stream, take in ((self._process.stdout, self._lines.put), (self._process.stderr, self._said.append)):
            threading.Thread(target=_read, args=(stream, take), daemon=True).start()
        return self._process


def _read(stream: Any, take: Any) -> None:
    for line in stream:
        take(line)
    take("")
