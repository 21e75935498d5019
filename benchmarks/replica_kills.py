"""Replicas under `kill -9`, at random moments and for long: what is lost is reported, and nothing else is lost.

    python -m benchmarks.replica_kills [--minutes 20] [--write]     # where inflight-llm[ray] is installed

Clients ask a server with replicas without a pause, streamed and whole, and a batch job runs beside them. Every answer
is compared with that of one engine. An answer that ends otherwise must have ended with the sentence that says so; one
that had not begun must be whole. In the end each line of the job stands in its output once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from benchmarks.served import Server

SENTENCE = "A replica was lost while it answered"
PROMPTS = 24
TOKENS = 80
CLIENTS = 6
PAUSES = (5.0, 25.0)  # seconds between two kills
LINES_A_MINUTE = 60  # of the batch job
TARGETS = ("ServeReplica", "ServeReplica", "ServeReplica", "ServeController")  # as Ray calls its processes

Answers = Sequence[str]


def body(number: int, **more: Any) -> dict[str, Any]:
    prompt = f"{number} sequences wait for a row, and each of them"
    fixed = {"model": "built-in", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.8}
    return {"prompt": prompt, "seed": number, **fixed, **more}


def ask(url: str, number: int, stream: bool) -> tuple[str, str | None]:
    """The text, and what broke it off."""
    data = json.dumps(body(number, stream=stream)).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    text = ""
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            if not stream:
                return json.load(answer)["choices"][0]["text"], None
            for line in answer:
                if line.startswith(b"data: {"):
                    reply = json.loads(line[6:])
                    if "error" in reply:
                        return text, reply["error"]["message"]
                    text += reply["choices"][0]["text"] if reply["choices"] else ""
                elif line.startswith(b"data: [DONE]"):
                    return text, None
    except urllib.error.HTTPError as error:
        return "", json.loads(error.read())["error"]["message"]
    except OSError as error:
        return text, f"connection: {error}"
    return text, "it ended without an end"


def outcome(expected: str, text: str, broken: str | None) -> str:
    if broken is None:
        return "whole" if text == expected else "WRONG TOKENS"
    if SENTENCE not in broken:
        return f"LOST: {broken[:80]}"
    return "ended with the sentence" if expected.startswith(text) else "WRONG TOKENS"


class Clients:
    """Send requests until they are stopped."""

    def __init__(self, url: str, expected: Answers, seed: int):
        self.tally: Counter[str] = Counter()
        self._url, self._expected, self._stop = url, expected, threading.Event()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._running = [self._pool.submit(self._go_on, random.Random(seed + one)) for one in range(CLIENTS)]

    def _go_on(self, chosen: random.Random) -> None:
        while not self._stop.is_set():
            number, stream = chosen.randrange(PROMPTS), chosen.random() < 0.7
            came = outcome(self._expected[number], *ask(self._url, number, stream))
            with self._lock:
                self.tally[came] += 1

    def end(self) -> None:
        self._stop.set()
        for one in self._running:
            one.result()
        self._pool.shutdown()


def killed(server: int, chosen: random.Random) -> str | None:
    """Kills one of Ray's processes below the server's; its kind, or None where none of that kind is there."""
    kind = chosen.choice(TARGETS)
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    parents = {int(row[0]): int(row[1]) for row in rows}
    found = [int(row[0]) for row in rows if kind in row[2] and _is_below(int(row[0]), server, parents)]
    if not found:
        return None
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(chosen.choice(found))], check=False)
    return kind


def _is_below(pid: int, above: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != above:
        pid = parents[pid]
    return pid == above


class Job:
    """A batch job of so many lines."""

    def __init__(self, url: str, lines: int):
        self._url, self._lines = url, lines
        whole = "".join(
            json.dumps({"custom_id": str(one), "method": "POST", "url": "/v1/completions", "body": body(one % PROMPTS)})
            + "\n"
            for one in range(lines)
        )
        file = self._upload(whole.encode())
        asked = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        self._id = self._call("/v1/batches", json.dumps(asked).encode())["id"]

    def ended(self, expected: Answers) -> str:
        """Return the result as text."""
        while (reply := self._call(f"/v1/batches/{self._id}"))["status"] not in ("completed", "failed", "expired"):
            time.sleep(1.0)
        with urllib.request.urlopen(f"{self._url}/v1/files/{reply['output_file_id']}/content", timeout=60) as answer:
            lines = [json.loads(line) for line in answer.read().splitlines()]
        ids = Counter(line["custom_id"] for line in lines)
        once = sum(number == 1 for number in ids.values())
        right = sum(_text(line) == expected[int(line["custom_id"]) % PROMPTS] for line in lines)
        return (
            f"{reply['status']}: of {self._lines} lines {once} once in the output, "
            f"{right} with the tokens of one engine"
        )

    def _upload(self, content: bytes) -> str:
        mark = "benchmark-boundary"
        head = f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{mark}\r\n'
        head += 'Content-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n'
        data = head.encode() + content + f"\r\n--{mark}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        with urllib.request.urlopen(urllib.request.Request(f"{self._url}/v1/files", data, kind), timeout=60) as answer:
            return str(json.load(answer)["id"])

    def _call(self, path: str, data: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            reply: dict[str, Any] = json.load(answer)
            return reply


def _text(line: dict[str, Any]) -> str:
    return str(line["response"]["body"]["choices"][0]["text"]) if line.get("response") else ""


def trial(minutes: float, replicas: int, seed: int) -> tuple[Counter[str], Counter[str], str]:
    """Answers by what came of them, kills by what was killed, and what came of the job."""
    with Server("--max-num-seqs", "8") as single:
        expected = [ask(f"http://127.0.0.1:{single.port}", number, False)[0] for number in range(PROMPTS)]
    chosen, kills = random.Random(seed), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server("--replicas", str(replicas), "--max-num-seqs", "8", "--data-dir", str(Path(folder))) as server,
    ):
        url = f"http://127.0.0.1:{server.port}"
        job = Job(url, max(20, int(LINES_A_MINUTE * minutes)))
        clients, end = Clients(url, expected, seed), time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            time.sleep(chosen.uniform(*PAUSES))
            if (kind := killed(server.process.pid, chosen)) is not None:
                kills[kind] += 1
                log_line(f"{sum(kills.values())} kills; {dict(clients.tally)}")
        clients.end()
        came = job.ended(expected)
    return clients.tally, kills, came


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="(default 20)")
    parser.add_argument("--replicas", type=int, default=2, help="(default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of moments and targets (default 0)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    asked = parser.parse_args()
    tally, kills, came = trial(asked.minutes, asked.replicas, asked.seed)
    what = ", ".join(f"{number} of {kind}" for kind, number in kills.items())
    rows = [[name, f"{number:,}"] for name, number in tally.most_common()]
    head = f"{asked.replicas} replicas, {asked.minutes:g} minutes, {CLIENTS} clients. Killed: {what}. Batch job {came}."
    text = f"{head}\n\n{table(['what came of an answer', 'answers'], rows)}"
    print(text)
    publish("replica_kills", "Replicas that are killed at random", text, asked.write)
    if any(name.startswith(("LOST", "WRONG")) for name in tally):
        raise SystemExit("something was lost without its sentence")


if __name__ == "__main__":
    main()
