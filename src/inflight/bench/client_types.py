"""Types of the load client: the server, bodies, progress, observations, and whether the client kept up."""

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

    timeout_s: of one request, from its sending to its end; a longer one has failed. connect_timeout_s: to connect.
    retries: how often a request is sent again after 429 or 503 with Retry-After; 0: it counts as rejected at once.
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
        """Whether answers are tokens, not vectors."""
        return self.endpoint != "embeddings"


Transcript = str | tuple[int, ...] | list[dict[str, str]]


class Bodies(Protocol):
    """The JSON bodies of a workload's requests, pickled for each process of the client."""

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        """Return the body of entry `index`, and the conversation up to this request. before: the conversation so far,
        answer included, where the entry follows another (`Entry.after`). Called ahead of time where the body depends on
        no answer."""

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        """Return the conversation with its answer, for the next entry. token_ids are empty where the server did not
        send them."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the client itself kept up, so that its times can be believed.

    processes: that sent. worst_lag_s: the longest that an event loop could not read. lag_p99_s: the same, of regular
    ticks. busy: greatest share of a core that one process used. faults: sentences; the run is invalid where there is
    one. delay_p99_s: how late requests were sent after they were due and, with a bound on concurrency, had room.
    own_p99_s: the greater of lag and delay by the client's own work; for the rest it waited for a core. Of several
    processes, each figure is that of the worst.
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
    """Progress of a run. offered: entries of the workload; sent, and of those completed, rejected and failed.
    output_tokens: received. elapsed_s: since the workload's beginning."""

    offered: int
    sent: int
    completed: int
    rejected: int
    failed: int
    output_tokens: int
    elapsed_s: float

    @property
    def in_flight(self) -> int:
        return self.sent - self.completed - self.rejected - self.failed


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a workload. observations: in the order of its entries; times are seconds after its beginning.

    frames: server-sent events with tokens, of all requests together; where there are fewer than tokens, the server
    sends several tokens at once, and gaps between those count as zero. token_counts: "usage" where servers reported the
    number of output tokens, "frames" where each frame counts as one. interrupted: whether the run ended before all
    requests were sent or answered. began: the workload's beginning on time.perf_counter.
    """

    observations: tuple[Observation, ...]
    health: Health
    frames: int
    token_counts: str
    interrupted: bool = False
    began: float = 0.0
