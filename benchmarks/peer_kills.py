"""A prefill and a decode server under `kill -9` and `SIGSTOP`, at random moments and for long: what becomes of answers.

    python -m benchmarks.peer_kills [--minutes 20] [--model FOLDER] [--write]

Clients do what a router between such servers does: ask the prefill server, then the decode server with what it
answered; where the prefill server does not answer, the decode server alone; where that is gone, again when it is back.
Every answer is compared with that of one engine. A stopped server is a slow peer and a network that is cut: it goes on
after some seconds. In the end no block may be held at either side. The model is the built-in one, or of a folder, as
one with windows or recurrent layers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from benchmarks.served import Server

CLIENTS, PROMPTS, TOKENS = 4, 32, 24
PAUSES = (4.0, 15.0)  # seconds between two faults
STOPS = (1.0, 8.0)  # seconds for which one is stopped
TIMEOUT, HOLD = 3, 6  # of the servers, seconds
PATIENCE = 120.0  # seconds in which a request must have had its answer
ASKED = {"do_remote_decode": True, "do_remote_prefill": False}


class Pair:
    """The two servers, as they are now. Written by the thread that kills."""

    def __init__(self, secret: Path, model: Sequence[str]):
        """model: the argument of the servers; none: the built-in one."""
        self._secret, self._model = secret, model
        self.servers = {role: self._start(role) for role in ("prefill", "decode")}

    def _start(self, role: str) -> Server:
        more = ["--kv-transfer-hold", str(HOLD)] if role == "prefill" else []
        secret = ["--kv-peer-secret-file", str(self._secret), "--kv-transfer-timeout", str(TIMEOUT)]
        return Server(*self._model, "--role", role, "--threads", "1", "--num-blocks", "256", *secret, *more)

    def kill(self, role: str) -> None:
        self.servers[role].process.send_signal(signal.SIGKILL)
        self.servers[role].process.wait()
        self.servers[role] = self._start(role)

    def stop(self, role: str, seconds: float) -> None:
        self.servers[role].process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.servers[role].process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for one in self.servers.values():
            one.stop()


def post(server: Server, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Raises OSError where it is gone, or too slow."""
    content = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), content), timeout=seconds
    ) as got:
        found: dict[str, Any] = json.load(got)
        return found


def body(number: int) -> dict[str, Any]:
    text = f"Question {number}. " + "Blocks of keys and values are handed from one engine to another. " * 6
    return {"prompt": text, "temperature": 0.8, "seed": number, "max_tokens": TOKENS, "return_token_ids": True}


class Clients:
    def __init__(self, pair: Pair, expected: list[list[int]]):
        self._pair, self._expected = pair, expected
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self._main, args=(seed,)) for seed in range(CLIENTS)]
        for one in self._threads:
            one.start()

    def join(self) -> None:
        self.over.set()
        for one in self._threads:
            one.join()

    def _count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)

    def _main(self, seed: int) -> None:
        drawn, serial = random.Random(seed), 0
        while not self.over.is_set():
            number, serial = drawn.randrange(PROMPTS), serial + 1
            # A salt of its own each time, or the decode server would soon have all prompts in its own cache.
            asked = {**body(number), "cache_salt": f"{seed} {serial}"}
            began = time.monotonic()
            while not self._answered(number, asked):
                self._count("asked again")
                if time.monotonic() - began > PATIENCE:
                    self._count("lost")
                    break
                time.sleep(0.2)

    def _answered(self, number: int, asked: dict[str, Any]) -> bool:
        params = None
        try:
            first = post(self._pair.servers["prefill"], {**asked, "max_tokens": 1, "kv_transfer_params": ASKED}, 10)
            params = first["kv_transfer_params"]
        except (OSError, ValueError):
            self._count("prefill did not answer")
        try:
            answer = post(self._pair.servers["decode"], {**asked, "kv_transfer_params": params}, 30)
        except urllib.error.HTTPError as error:
            self._count("errors with a sentence" if b'"message"' in error.read() else "errors without a sentence")
            return False
        except (OSError, ValueError):
            self._count("decode did not answer")
            return False
        right = answer["choices"][0]["token_ids"] == self._expected[number]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self._count("right" if right else "wrong", "transferred" if cached else "computed where it is decoded")
        return True


def held(server: Server) -> int:
    """Blocks, once a request has been through, with which an engine hears of what has ended."""
    post(server, {"prompt": "end", "max_tokens": 1}, 30)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as page:
        found = re.search(r'inflight_kv_blocks\{[^}]*state="held"[^}]*\} (\S+)', page.read().decode())
    assert found is not None
    return int(float(found[1]))


def faults(pair: Pair, minutes: float, seed: int) -> Counter[str]:
    drawn, counts, end = random.Random(seed), Counter[str](), time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        time.sleep(drawn.uniform(*PAUSES))
        role = drawn.choice(("prefill", "decode"))
        if drawn.random() < 0.6:
            pair.kill(role)
            counts[f"{role} killed"] += 1
        else:
            pair.stop(role, drawn.uniform(*STOPS))
            counts[f"{role} stopped"] += 1
        log_line(str(dict(counts)))
    return counts


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=20)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--model", help="folder of a model; the built-in one if not given")
    arguments.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("a secret of the benchmark")
        model = [] if given.model is None else [given.model]
        with Server(*model, "--threads", "1") as alone:
            expected = [post(alone, body(number), 60)["choices"][0]["token_ids"] for number in range(PROMPTS)]
        pair = Pair(secret, model)
        clients = Clients(pair, expected)
        try:
            done = faults(pair, given.minutes, given.seed)
        finally:
            clients.join()
        time.sleep(HOLD + TIMEOUT + 1)
        left = {role: held(server) for role, server in pair.servers.items()}
        pair.close()
    counts = clients.counts
    rows = [[name, count] for name, count in sorted({**done, **counts}.items())]
    rows += [[f"blocks held at the end, {role}", count] for role, count in left.items()]
    variant = "" if given.model is None else Path(given.model).name
    title = "Prefill and decode servers that are killed at random" + (f": {variant}" if variant else "")
    publish("peer_kills", title, _body(given.minutes, rows), given.write, variant)
    if counts["wrong"] or counts["lost"] or counts["errors without a sentence"] or any(left.values()):
        raise SystemExit("answers are wrong or lost, or blocks are held without a request")


def _body(minutes: float, rows: list[list[object]]) -> str:
    return f"""{minutes:g} minutes, {CLIENTS} clients without a pause, a fault every {PAUSES[0]:g} to {PAUSES[1]:g} s: \
`kill -9`, or a stop of {STOPS[0]:g} to {STOPS[1]:g} s. Pulls may take {TIMEOUT} s, and blocks are held for {HOLD} s.

{table(["what", "times"], rows)}"""


if __name__ == "__main__":
    main()
