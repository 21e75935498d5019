"""Batch jobs under `kill -9`: a server is killed at random moments while it works, and no line may be missing.

Each life of the server is ended after a random time, now and then before it answers at all. Looked at after each
restart: no count has gone back. Looked at in the end: every line stands in exactly one file of its job, in order.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import table, write_section

SERVE = f"{sys.executable} -m inflight.cli serve --host 127.0.0.1 --port {{port}} --data-dir {{data}}"
ENDED = ("completed", "failed", "expired", "cancelled")
EARLY = 0.1  # share of the lives that are ended before the server is ready


@dataclass(slots=True)
class Tally:
    kills: int = 0
    early: int = 0
    jobs: int = 0
    lines: int = 0


class Server:
    """One process after the other on the same data directory."""

    def __init__(self, command: str, data: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._command = [part.format(port=port, data=data) for part in shlex.split(command)]
        self._url = f"http://127.0.0.1:{port}"
        self._log = (data / "server.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def wait_until_ready(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.call("GET", "/v1/batches?limit=1")
                return
            except OSError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"The server did not start; its words are in {self._log.name}.") from None
                time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def call(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        text = self.text(method, path, body, kind)
        return json.loads(text)

    def text(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> str:
        request = urllib.request.Request(self._url + path, body, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(response.read().decode())


def create(server: Server, lines: int, max_tokens: int) -> dict[str, Any]:
    body = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    requests = (
        {"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": f"Line {n}.", **body}}
        for n in range(lines)
    )
    content = "".join(json.dumps(one) + "\n" for one in requests)
    parts = (
        '--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--B\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n{content}\r\n--B--\r\n'
    )
    file = server.call("POST", "/v1/files", parts.encode(), "multipart/form-data; boundary=B")
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    job: dict[str, Any] = server.call("POST", "/v1/batches", json.dumps(wanted).encode())
    return job


def check(server: Server, job: dict[str, Any], lines: int) -> None:
    """Raises SystemExit where a line is missing, double, out of order or badly answered."""
    text = server.text("GET", f"/v1/files/{job['output_file_id']}/content") if job["output_file_id"] else ""
    found = [json.loads(line) for line in text.splitlines()]
    names = [one["custom_id"] for one in found]
    statuses = {one["response"]["status_code"] for one in found}
    counts = job["request_counts"]
    whole = names == [str(n) for n in range(lines)] and statuses == {200} and job["error_file_id"] is None
    if not whole or job["status"] != "completed" or counts != {"total": lines, "completed": lines, "failed": 0}:
        raise SystemExit(f"Lines were lost or doubled: {len(set(names))} of {lines} once, {counts}, {job['status']}.")


def loop(server: Server, kills: int, lines: int, max_tokens: int, longest_life: float, seed: int) -> Tally:
    chosen, tally = random.Random(seed), Tally()
    job: dict[str, Any] | None = None
    while True:
        server.spawn()
        if tally.kills < kills and chosen.random() < EARLY:
            time.sleep(chosen.uniform(0, 1))
            server.kill()
            tally.kills, tally.early = tally.kills + 1, tally.early + 1
            continue
        server.wait_until_ready()
        if job is None:
            job = create(server, lines, max_tokens)
        until = time.monotonic() + (chosen.uniform(0, longest_life) if tally.kills < kills else float("inf"))
        while (job := _looked_at(server, job))["status"] not in ENDED and time.monotonic() < until:
            time.sleep(0.005)
        if job["status"] in ENDED:
            check(server, job, lines)
            tally.jobs, tally.lines, job = tally.jobs + 1, tally.lines + lines, None
            print(f"job {tally.jobs}: {lines} lines whole after {tally.kills} kills in all", file=sys.stderr)
        else:
            tally.kills += 1
        server.kill()
        if tally.kills >= kills and job is None:
            return tally


def _looked_at(server: Server, before: dict[str, Any]) -> dict[str, Any]:
    now: dict[str, Any] = server.call("GET", f"/v1/batches/{before['id']}")
    if any(now["request_counts"][name] < count for name, count in before["request_counts"].items()):
        raise SystemExit(f"A count went back: {before['request_counts']}, then {now['request_counts']}.")
    return now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--lines", type=int, default=1000, help="of each job")
    parser.add_argument("--max-tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--longest-life", type=float, default=0.3, help="seconds from ready to the kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", default=SERVE, help="command line, with {port} and {data}")
    parser.add_argument("--write", action="store_true", help="into docs/results.md")
    given = parser.parse_args()
    if given.write and given.server != SERVE:
        parser.error("--write is for the server itself; leave --server out.")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(given.server, Path(folder))
        started = time.monotonic()
        tally = loop(server, given.kills, given.lines, given.max_tokens, given.longest_life, given.seed)
        seconds = time.monotonic() - started
    head = ("kills", "of them before it was ready", "jobs", "lines, each answered once", "seconds")
    body = table(head, [(tally.kills, tally.early, tally.jobs, tally.lines, f"{seconds:.0f}")])
    print(body)
    if given.write:
        command = f"python -m benchmarks.kill_loop --kills {given.kills} --lines {given.lines}"
        write_section("kill_loop", "Batch jobs under kill -9", command, body)


if __name__ == "__main__":
    main()
