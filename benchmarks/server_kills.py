"""A server under load whose processes are killed in turn, at random moments: own calls end with an error, no other.

    python -m benchmarks.server_kills [--minutes 20] [--seed 0] [--write]

An API process, a process that reads bodies, and the engine's process get SIGKILL, one after another. Clients ask all
the while, streamed and whole, and batch jobs run beside them. An answer must be whole and the same as before the first
kill. An error is allowed while the engine is started again, a broken connection for clients of the API process that
was killed. After each kill a process takes the place of the killed one, and /readyz, which is 503 without an engine, is
200 again. Each line of a job is answered once. The first process must not grow.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from benchmarks.served import Server

API, WORKER, ENGINE = "API process", "tokenizer worker", "engine"
MODULES = {
    API: b"inflight.server.processes.child",
    WORKER: b"inflight.server.preprocessing.worker",
    ENGINE: b"inflight.launch.engine_process",
}
CLIENTS = 6
JOB_LINES = 60
MAX_TOKENS = 48
PAUSES = (2.0, 6.0)  # seconds from one recovery to the next kill: a server ends after five lives of under 10 s in a row
CALL_SECONDS = 120.0  # after which a call hangs
RECOVERY_SECONDS = 120.0
GROWN_KB = 8 << 10  # that the first process may have grown between the first round of kills and the end
SLACK = 0.5  # seconds in which the end of an engine reaches all calls


class Wrong(RuntimeError):
    """A state that must never be; the sentence says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request and how its answer is read."""

    kind: str
    path: str
    body: dict[str, Any]


def calls() -> list[Call]:
    """Return the requests that clients send, each with one right answer."""
    found = []
    for number in range(6):
        text = f"{number} sequences wait for a slot, and each of them"
        fixed = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": 0}
        chat = {"messages": [{"role": "user", "content": text}], **fixed}
        for stream in (True, False):
            found.append(Call("chat", "/v1/chat/completions", {**chat, "stream": stream}))
            found.append(Call("completion", "/v1/completions", {"prompt": text, **fixed, "stream": stream}))
        for length in (20, 2_000):  # one for the process of short bodies, one for those of long ones
            found.append(Call("tokenize", "/tokenize", {"prompt": f"{text} " * length}))
    return found


@dataclass(slots=True)
class Ended:
    """Record the outcome of a call: its text so far, and at most one of an error and a broken connection."""

    began: float
    text: str = ""
    error: dict[str, Any] | None = None
    broken: str | None = None
    port: int = 0  # of the client


def ask(port: int, call: Call) -> Ended:
    ended = Ended(time.monotonic())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
    try:
        connection.connect()
        ended.port = connection.sock.getsockname()[1]
        connection.request("POST", call.path, json.dumps(call.body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            ended.error = _error_of(json.loads(answer.read()))
        elif call.body.get("stream"):
            _read_stream(answer, ended)
        else:
            ended.text = _text(json.loads(answer.read()))
    except TimeoutError:
        raise Wrong(f"{call.path} hung for {CALL_SECONDS:g} s.") from None
    except (OSError, http.client.HTTPException) as error:
        ended.broken = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return ended


def _read_stream(answer: http.client.HTTPResponse, ended: Ended) -> None:
    for line in answer:
        if line.startswith(b"data: {"):
            frame = json.loads(line[6:])
            if "error" in frame:
                ended.error = _error_of(frame)
            else:
                ended.text += _text(frame)
        elif line.startswith(b"data: [DONE]"):
            return
    if ended.error is None:
        ended.broken = "the stream stopped without an end"


def _text(answer: dict[str, Any]) -> str:
    if "tokens" in answer:
        return json.dumps(answer["tokens"])
    if not answer["choices"]:
        return ""
    choice = answer["choices"][0]
    said = choice.get("message") or choice.get("delta") or choice
    return str(said.get("text") or said.get("content") or "")


def _error_of(answer: dict[str, Any]) -> dict[str, Any]:
    error = answer.get("error")
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
        raise Wrong(f"An error is not in OpenAI's shape: {answer}.")
    return error


# -- processes --------------------------------------------------------------------------------------------------------
def processes(above: int) -> dict[str, list[int]]:
    """Return the ids of a server's processes by their kind."""
    found: dict[str, list[int]] = {kind: [] for kind in MODULES}
    for number in _below(above):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_bytes()
            for kind, module in MODULES.items():
                if module in command.split(b"\0"):
                    found[kind].append(number)
    return found


def _below(number: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{number}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from _below(int(child))


def _client_ports(process: int) -> set[int]:
    """Return the clients' ports of the connections that a process has."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(descriptor))
    ports = set()
    for _ in range(2):  # the system's list may miss a line while connections come and go
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[2].rpartition(":")[2], 16))
    return ports


def resident_kb(process: int) -> int:
    """Return the kilobytes that only this process has."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Private_Clean:")))


class Kills:
    """Kills processes, waits until the server has recovered, and knows which calls each kill may have cost."""

    def __init__(self, server: Server, chosen: random.Random):
        self._server, self._chosen = server, chosen
        self._api_processes = len(server.api_processes())
        self._outages: list[list[float]] = []  # of the engine: begin and end
        self._cut: dict[int, float] = {}  # by a client's port: when its API process was killed
        self.counts: Counter[str] = Counter()
        self.recoveries: dict[str, list[float]] = {kind: [] for kind in MODULES}

    def may_fail(self, call: Ended, now: float) -> bool:
        """Return whether the engine was away during a call."""
        return any(call.began <= end and begin <= now for begin, end in self._outages)

    def may_break(self, call: Ended) -> bool:
        """Return whether a call's API process was killed during it."""
        return self._cut.get(call.port, 0.0) >= call.began

    def kill(self, kind: str) -> None:
        """Kill a process of this kind and wait until another one is there. Raises Wrong."""
        found = processes(self._server.process.pid)[kind]
        if not found:
            raise Wrong(f"The server has no {kind}.")
        victim = self._chosen.choice(found)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP)  # it accepts no connection while its own are listed
            outage = [time.monotonic(), float("inf")]
            if kind == ENGINE:
                self._outages.append(outage)
            elif kind == API:
                self._cut.update(dict.fromkeys(_client_ports(victim), time.monotonic()))
            os.kill(victim, signal.SIGKILL)
            self.counts[kind] += 1
            if kind == ENGINE:
                self._wait("/readyz is 503 without an engine", lambda: self._status() == 503)
            self._wait(f"another {kind} is started", lambda: self._has_recovered(kind, victim))
            self.recoveries[kind].append(time.monotonic() - outage[0])
            outage[1] = time.monotonic() + SLACK

    def _has_recovered(self, kind: str, victim: int) -> bool:
        found = processes(self._server.process.pid)
        if victim in found[kind] or len(found[API]) != self._api_processes or len(found[ENGINE]) != 1:
            return False
        return all(self._status() == 200 for _ in range(4 * self._api_processes))

    def _status(self) -> int:
        """Return the status of /readyz; 0 where the connection broke."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=CALL_SECONDS)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + RECOVERY_SECONDS
        while not is_so():
            if self._server.process.poll() is not None:
                raise Wrong("The server ended.")
            if time.monotonic() > end:
                raise Wrong(f"Not within {RECOVERY_SECONDS:g} s: {what}.")
            time.sleep(0.01)


# -- load -------------------------------------------------------------------------------------------------------------
class Clients:
    """Ask until they are stopped."""

    def __init__(self, port: int, expected: Sequence[tuple[Call, str]], kills: Kills, seed: int):
        self.tally: Counter[tuple[str, str]] = Counter()  # by kind of call and what became of it
        self._port, self._expected, self._kills = port, expected, kills
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._running = [self._pool.submit(self._ask, random.Random(seed + one)) for one in range(CLIENTS)]

    def _ask(self, chosen: random.Random) -> None:
        while not self._stop.is_set():
            call, expected = chosen.choice(self._expected)
            outcome = self._outcome(call, ask(self._port, call), expected)
            with self._lock:
                self.tally[call.kind, outcome] += 1
            if outcome != "whole":
                time.sleep(0.05)  # as a client that retries

    def _outcome(self, call: Call, ended: Ended, expected: str) -> str:
        """Raises Wrong for an outcome that no kill explains."""
        if ended.broken is not None or ended.error is not None:
            if not expected.startswith(ended.text):
                raise Wrong(f"{call.path} had other text before its end: {ended.text[:200]!r}.")
        elif ended.text != expected:
            raise Wrong(f"{call.path} answered {ended.text[:200]!r}, and {expected[:200]!r} is right.")
        if ended.broken is not None:
            if not self._kills.may_break(ended):
                raise Wrong(f"{call.path} broke off, and its API process was not killed: {ended.broken}.")
            return "connection of a killed API process"
        if ended.error is not None:
            if not self._kills.may_fail(ended, time.monotonic()):
                raise Wrong(f"{call.path} ended with an error, and the engine was there: {ended.error}.")
            return f"error {ended.error['code']}"
        return "whole"

    def check(self) -> None:
        """Raises Wrong where a client has seen what must not be."""
        for one in self._running:
            if one.done():
                one.result()

    def end(self) -> None:
        self._stop.set()
        for one in self._running:
            one.result()
        self._pool.shutdown()


class Jobs:
    """Batch jobs one after another, each checked at its end."""

    def __init__(self, port: int, expected: Sequence[tuple[Call, str]]):
        self._port, self.lines = port, 0
        self._calls = [(call, text) for call, text in expected if call.path == "/v1/completions"]
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            chosen = [self._calls[number % len(self._calls)] for number in range(JOB_LINES)]
            lines = [
                {"custom_id": str(number), "method": "POST", "url": call.path, "body": {**call.body, "stream": False}}
                for number, (call, _) in enumerate(chosen)
            ]
            file = self._upload("".join(json.dumps(line) + "\n" for line in lines).encode())
            wanted = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
            job = self._json("/v1/batches", json.dumps(wanted).encode())
            while (job := self._json(f"/v1/batches/{job['id']}"))["status"] in (
                *("validating", "in_progress", "finalizing"),
            ):
                time.sleep(0.2)
            self._check(job, [text for _, text in chosen])
            self.lines += JOB_LINES

    def _check(self, job: dict[str, Any], expected: Sequence[str]) -> None:
        if job["status"] != "completed" or job["request_counts"]["failed"]:
            raise Wrong(f"A batch job ended {job['status']}, with {job['request_counts']}.")
        content = self._content(f"/v1/files/{job['output_file_id']}/content")
        answers = [json.loads(line) for line in content.splitlines()]
        if sorted(int(one["custom_id"]) for one in answers) != list(range(JOB_LINES)):
            raise Wrong("Lines of a batch job are missing or doubled in its output.")
        for one in answers:
            if _text(one["response"]["body"]) != expected[int(one["custom_id"])]:
                raise Wrong(f"Line {one['custom_id']} of a batch job has a wrong answer: {one}.")

    def _upload(self, content: bytes) -> str:
        head = b"--B\r\nContent-Disposition: form-data; "
        form = head + b'name="purpose"\r\n\r\nbatch\r\n' + head + b'name="file"; filename="in.jsonl"\r\n\r\n'
        kind = "multipart/form-data; boundary=B"
        return str(self._json("/v1/files", form + content + b"\r\n--B--\r\n", kind)["id"])

    def _json(self, path: str, body: bytes | None = None, kind: str = "application/json") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._content(path, body, kind))
        return found

    def _content(self, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """Ask until an API process lives long enough to answer."""
        end = time.monotonic() + RECOVERY_SECONDS
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALL_SECONDS)
            try:
                connection.request("GET" if body is None else "POST", path, body, {"Content-Type": kind})
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    return content
                if answer.status != 503:
                    raise Wrong(f"{path} answered {answer.status}: {content[:300]!r}.")
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            if time.monotonic() > end:
                raise Wrong(f"{path} was not answered within {RECOVERY_SECONDS:g} s.")
            time.sleep(0.1)

    def check(self) -> None:
        if self._running.done():
            self._running.result()

    def end(self) -> None:
        """Wait for the last job."""
        self._stop.set()
        self._running.result()
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Trial:
    """Record what a trial has seen. grown_kb: of the first process's own memory."""

    tally: Counter[tuple[str, str]]
    kills: Kills
    lines: int
    grown_kb: int


def trial(minutes: float, seed: int) -> Trial:
    """Raises Wrong at the first thing that must not be."""
    chosen = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        Server("--api-processes", "2", "--max-num-seqs", "8", "--data-dir", str(Path(folder) / "data")) as server,
    ):
        expected = []
        for call in calls():
            ended = ask(server.port, call)
            if ended.error or ended.broken:
                raise Wrong(f"{call.path} failed before a kill: {ended.error or ended.broken}.")
            expected.append((call, ended.text))
        kills = Kills(server, chosen)
        clients, jobs = Clients(server.port, expected, kills, seed), Jobs(server.port, expected)
        end, rest = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < end or not rest:
            for kind in chosen.sample(list(MODULES), len(MODULES)):
                time.sleep(chosen.uniform(*PAUSES))
                kills.kill(kind)
                clients.check()
                jobs.check()
                log_line(f"{dict(kills.counts)}; {sum(clients.tally.values())} calls, {jobs.lines} lines of jobs")
            rest = rest or resident_kb(server.process.pid)
        clients.end()
        jobs.end()
        grown = resident_kb(server.process.pid) - rest
        if grown > GROWN_KB:
            raise Wrong(f"The first process has grown by {grown:,} KB.")
        return Trial(clients.tally, kills, jobs.lines, grown)


def report(found: Trial, minutes: float) -> str:
    kills = table(
        ["killed", "times", "until all are ready again, s: median", "longest"],
        [
            [kind, len(times), f"{sorted(times)[len(times) // 2]:.1f}", f"{max(times):.1f}"]
            for kind, times in found.kills.recoveries.items()
            if times
        ],
    )
    rows = [[kind, outcome, f"{number:,}"] for (kind, outcome), number in sorted(found.tally.items())]
    return (
        f"{minutes:g} minutes, 2 API processes, {CLIENTS} clients, the built-in model. All answers that ended were "
        f"those from before the first kill, errors came only while the engine was away, and connections broke only "
        f"with their API process. {found.lines:,} lines of batch jobs were answered once each. The first process's "
        f"own memory changed by {found.grown_kb:,} KB.\n\n{kills}\n\n{table(['call', 'ended', 'calls'], rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="(default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of moments and processes (default 0)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results")
    given = parser.parse_args()
    try:
        found = trial(given.minutes, given.seed)
    except Wrong as wrong:
        raise SystemExit(str(wrong)) from None
    publish("server_kills", "Processes of a server that are killed", report(found, given.minutes), given.write)


if __name__ == "__main__":
    main()
