"""Workloads for the stub: each request's body holds what the stub is to do with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.stub_server import StubServer
from inflight.bench.client import send
from inflight.bench.client_types import RunResult, Target, Transcript
from inflight.metrics.observation import Observation
from inflight.workload.workload import Entry, Workload


@dataclass(frozen=True)
class ScriptedBodies:
    """Entry i plays the script i. Conversations are text: "<i" for what is asked, then the answer."""

    scripts: tuple[dict[str, Any], ...]

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        conversation = f"{before or ''}<{index}"
        body = {"prompt": conversation, "stream": True, "stub": self.scripts[index]}
        return json.dumps(body).encode(), conversation

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        return f"{conversation}>{text}{list(token_ids) if token_ids else ''}"


def entries(count: int, gap_s: float = 0.0, **fields: Any) -> tuple[Entry, ...]:
    return tuple(Entry(place * gap_s, 5, 4, **fields) for place in range(count))


def play(
    stub: StubServer | str,
    scripts: Sequence[dict[str, Any]],
    offered: tuple[Entry, ...] | None = None,
    *,
    concurrency: int | None = None,
    closed: bool = False,
    target: dict[str, Any] | None = None,
    **options: Any,
) -> RunResult:
    workload = Workload(offered or entries(len(scripts), 0.005), "scripted", concurrency, closed)
    url = stub if isinstance(stub, str) else stub.url
    whom = replace(Target(url, timeout_s=20.0, connect_timeout_s=5.0), **(target or {}))
    return send(workload, whom, ScriptedBodies(tuple(scripts)), **options)


def one(stub: StubServer | str, target: dict[str, Any] | None = None, **script: Any) -> Observation:
    return play(stub, [script], target=target).observations[0]
