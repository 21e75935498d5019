"""Whom the load client asks, what goes to its processes and what comes back: the types that all who use it share.

Knows no HTTP: only what is to be sent, what was observed, and whether the client kept up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from inflight.metrics.observation import Observation

Endpoint = Literal["completions", "chat", "embeddings"]
PATHS: Mapping[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
}


class BenchError(ValueError):
    """A measurement cannot be made; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """url: without a path, as http://127.0.0.1:8000, or with the part before /v1. headers: sent with every request.

    timeout_s: for one request, from its sending to its end; what takes longer has failed. connect_timeout_s: to
    connect. retries: how often a request is sent again that was told to come later (429 or 503 with Retry-After); 0: it
    counts as rejected at once.
    """

    url: str
    endpoint: Endpoint = "completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    retries: int = 0

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    @property
    def answers(self) -> bool:
        """Whether what comes back is tokens; else it is a vector."""
        return self.endpoint != "embeddings"


Transcript = str | tuple[int, ...] | list[dict[str, str]]


class Bodies(Protocol):
    """The JSON bodies of a workload's requests. Handed to each process of the client, so that it must pickle."""

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        """Of entry `index`: what to send, and the conversation as this request tells it. before: the conversation so
        far, answer included, where the entry follows another (`Entry.after`). Made before its time to be sent where
        nothing is awaited for it."""

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        """The conversation with its answer, for the entry that follows. token_ids are empty where the server did not
        tell them."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the client itself kept up, so that its times can be believed.

    processes: that sent. worst_lag_s: the longest that an event loop was not able to look at what came. lag_p99_s: the
    same, of regular looks. busy: greatest share of a core that one process used.
    faults: sentences; the run is invalid where there is one.
    delay_p99_s: how late requests were sent after they were due and, with a bound on concurrency, had room. own_p99_s:
    the greater of lag and delay where only what the client's own work caused counts; for the rest it waited for a core.
    Where there are several processes, each figure is that of the worst.
    """

    processes: int
    lag_p99_s: float
    worst_lag_s: float
    busy: float
    faults: tuple[str, ...] = ()
    delay_p99_s: float = 0.0
    own_p99_s: float = 0.0

    @property
    def valid(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. offered: entries of the workload; sent, and of those completed, rejected and failed.

    output_tokens: that have come. elapsed_s: since the workload's beginning.
    """

    offered: int
    sent: int
    completed: int
    rejected: int
    failed: int
    output_tokens: int
    elapsed_s: float

    @property
    def under_way(self) -> int:
        return self.sent - self.completed - self.rejected - self.failed


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a workload. observations: in the order of its entries; times are seconds after its beginning.

    frames: server-sent events that brought tokens, of all requests together; where there are fewer than tokens, the
    server sends several tokens at once, and gaps between those count as zero.
    token_counts: "usage" where servers told the number of output tokens, "frames" where each frame was taken for one.
    interrupted: whether the run was ended before all had been sent or answered.
    began: the workload's beginning on time.perf_counter.
    """

    observations: tuple[Observation, ...]
    health: Health
    frames: int
    token_counts: str
    interrupted: bool = False
    began: float = 0.0
