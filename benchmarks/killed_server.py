"""A server that is killed and started again on the same data directory, and its Files and Batches API."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ENDED = ("completed", "failed", "expired", "cancelled")


class Wrong(RuntimeError):
    """A state that must never be; the sentence says which."""


class Server:
    """One process after the other on the same data directory."""

    def __init__(self, data: Path, log: Path):
        """log: a file outside of the directory; each process begins it anew."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.data, self.log = data, log
        serve = [sys.executable, "-m", "inflight.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
        self._command = [*serve, "--data-dir", str(data), "--log-format", "text"]
        self._url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._end)  # a trial that fails leaves none

    def spawn(self) -> None:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def wait_until_ready(self, seconds: float = 120) -> int | None:
        """None when it answers, its exit code when it ended instead."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self.call("GET", "/v1/batches?limit=1")
                return None
            except OSError:
                code = self._process.poll()
                if code is not None:
                    return code
                time.sleep(0.01)
        raise Wrong(f"The server was not ready within {seconds:.0f} s; its words are in {self.log}.")

    def start(self) -> None:
        """Raises Wrong where it does not."""
        self.spawn()
        if (code := self.wait_until_ready()) is not None:
            raise Wrong(f"The server ended with {code}: {self.words()[:500]}")

    def kill(self) -> None:
        """Kill all processes of the server at once."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def stop(self) -> None:
        """As people do."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def words(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def call(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        return json.loads(self.content(path, method, body, kind))

    def content(
        self, path: str, method: str = "GET", body: bytes | None = None, kind: str = "application/json"
    ) -> bytes:
        """Raises OSError: also an HTTPError, for what is refused."""
        request = urllib.request.Request(self._url + path, body, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return bytes(response.read())
        except http.client.HTTPException as error:  # what a server that dies in the middle of an answer leaves of it
            raise ConnectionError(str(error)) from None

    # -- files and jobs -------------------------------------------------------------------------------------------

    def upload(self, content: bytes) -> str:
        """The file's id."""
        head = b"--B\r\nContent-Disposition: form-data; "
        purpose = head + b'name="purpose"\r\n\r\nbatch\r\n'
        form = purpose + head + b'name="file"; filename="in.jsonl"\r\n\r\n' + content + b"\r\n--B--\r\n"
        return str(self.call("POST", "/v1/files", form, "multipart/form-data; boundary=B")["id"])

    def create_job(self, lines: int, max_tokens: int) -> dict[str, Any]:
        """Answers are drawn, so that a line that is answered anew has another answer."""
        body = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 1}
        requests = (
            {"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": f"Line {n}.", **body}}
            for n in range(lines)
        )
        file = self.upload("".join(json.dumps(one) + "\n" for one in requests).encode())
        wanted = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        job: dict[str, Any] = self.call("POST", "/v1/batches", json.dumps(wanted).encode())
        return job

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/v1/batches/{job_id}")
        return found

    def ended(self, job_id: str, seconds: float = 120) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (job := self.job(job_id))["status"] not in ENDED:
            if time.monotonic() > deadline:
                raise Wrong(f"The job did not end within {seconds:.0f} s: {job}.")
            time.sleep(0.01)
        return job

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [json.loads(line) for line in self.content(f"/v1/files/{file_id}/content").splitlines()]
