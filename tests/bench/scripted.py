"""Servers and senders that do what a test says: no waiting, no chance.

`ScriptedServer` answers HTTP as some server would: which fields it refuses, whether it counts tokens. `FakeSend` makes
observations as a server of a known capacity would, without any time passing.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from inflight.bench.client_types import Bodies, Health, Progress, RunResult, Target
from inflight.metrics.observation import Observation
from inflight.workload.workload import Entry, Workload


@dataclass
class ScriptedServer:
    """refuses: fields that are answered with a 400. named: whether the 400 names the field. ignores: taken without
    effect. vocab_size: of token ids. reports_vocab_size: /tokenizer_info has it. tokenize: whether there is
    /tokenize; a word is a token, and each text has one more in front."""

    refuses: frozenset[str] = frozenset()
    named: bool = True
    ignores: frozenset[str] = frozenset()
    takes_ids: bool = True
    vocab_size: int = 5000
    reports_vocab_size: bool = False
    tokenize: bool = True
    tokenize_messages: bool = True
    usage: bool = True
    models: tuple[str, ...] = ("m",)
    extra: dict[str, Any] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    template_tokens = 9

    def __enter__(self) -> ScriptedServer:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": name, **self.extra} for name in self.models]}
        if path == "/tokenizer_info?model=m" and self.reports_vocab_size:
            return 200, {"vocab_size": self.vocab_size}
        return 404, {"error": {"message": "no such path"}}

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/tokenize":
            return self._count(body)
        self.bodies.append(body)
        flat = {*body, *body.get("stream_options", {})}
        refused = sorted(flat & self.refuses)
        if refused:
            message = f"the field {refused[0]!r} is unknown" if self.named else "this request is malformed"
            return 400, {"error": {"message": message, "param": None}}
        prompt = body.get("prompt")
        if isinstance(prompt, list) and not self.takes_ids:
            return 400, {"error": {"message": "prompt must be a string", "param": "prompt"}}
        if isinstance(prompt, list) and max(prompt) >= self.vocab_size:
            return 400, {"error": {"message": f"token id {max(prompt)} is out of the vocabulary"}}
        return 200, self._stream(body)

    def _stream(self, body: dict[str, Any]) -> str:
        made = body.get("max_tokens", body.get("max_completion_tokens", 4))
        if "output_tokens" in body and "output_tokens" not in self.ignores:
            made = body["output_tokens"]
        frames: list[Any] = [{"choices": [{"text": " a", "finish_reason": None}]} for _ in range(made)]
        if self.usage:
            frames.append(
                {"choices": [], "usage": {"prompt_tokens": self._prompt_tokens(body), "completion_tokens": made}}
            )
        return "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"

    def _prompt_tokens(self, body: dict[str, Any]) -> int:
        if "messages" in body:
            return self.template_tokens + sum(len(one["content"].split()) for one in body["messages"])
        return len(body["prompt"]) if isinstance(body["prompt"], list) else len(body["prompt"].split()) + 1

    def _count(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.tokenize or ("messages" in body and not self.tokenize_messages):
            return 404, {"error": {"message": "no such path"}}
        return 200, {"count": self._prompt_tokens(body)}


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*server.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(*server.post(self.path, body))

        def _answer(self, status: int, body: Any) -> None:
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


@dataclass
class FakeSend:
    """A server with one worker that needs `seconds` a request: a queue in front of it, so that latency is known.

    fate: changes an observation by its index. faults: of the client. stops_after: entries after which the run is
    interrupted.
    """

    seconds: float = 0.1
    fate: Callable[[int, Observation], Observation] = lambda index, one: one
    faults: tuple[str, ...] = ()
    stops_after: int | None = None
    sent: list[tuple[Workload, list[dict[str, Any]]]] = field(default_factory=list)

    def __call__(
        self,
        workload: Workload,
        target: Target,
        bodies: Bodies,
        *,
        processes: int = 1,
        progress: Callable[[Progress], None] | None = None,
        interrupt: Callable[[], bool] | None = None,
    ) -> RunResult:
        made = [json.loads(bodies.body(k, None)[0]) for k, one in enumerate(workload.entries) if one.after is None]
        self.sent.append((workload, made))
        free, found = 0.0, []
        for index, entry in enumerate(workload.entries):
            stopped = self.stops_after is not None and index >= self.stops_after
            found.append(
                self.fate(index, _never(entry, free) if stopped else observed(entry, index, free, self.seconds))
            )
            free = found[-1].ended
        if progress is not None:
            progress(Progress(len(found), len(found), len(found), 0, 0, 0, free))
        health = Health(processes=processes, lag_p99_s=0.0, worst_lag_s=0.0, busy=0.1, faults=self.faults)
        return RunResult(tuple(found), health, 0, "usage", self.stops_after is not None)


def observed(entry: Entry, index: int, free: float, seconds: float) -> Observation:
    """Begun when it came and the worker was free; its tokens come evenly over `seconds`."""
    begun = max(entry.arrival, free)
    times = [begun + seconds * (k + 1) / entry.output_tokens for k in range(entry.output_tokens)]
    return Observation(
        request_id=f"r{index}",
        intended=entry.arrival,
        ended=times[-1],
        sent=entry.arrival,
        first_token=times[0],
        last_token=times[-1],
        token_times=times,
        prompt_tokens=entry.prompt_tokens,
        output_tokens=len(times),
        longest_output=len(times),
        traffic=entry.traffic,
        lane=entry.lane,
        tenant=entry.tenant,
        targets=entry.targets,
        status=200,
    )


def _never(entry: Entry, now: float) -> Observation:
    return Observation(f"#{entry.arrival}", entry.arrival, now, "unfinished", targets=entry.targets)


def words(text: str) -> int:
    """A tokenizer of which a word is a token, with one token in front."""
    return len(re.findall(r"\S+", text)) + 1
