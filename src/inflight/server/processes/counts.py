"""Counts that API processes report, for the metrics, which outlive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from inflight.server.metrics.page import Metrics
    from inflight.server.metrics.pool_page import PoolMetrics


class Answered(Struct, frozen=True, tag=True):
    """An HTTP request was answered."""

    route: str
    status: int
    seconds: float


class NotAsked(Struct, frozen=True, tag=True):
    """A call was refused before it reached the engine."""

    code: str


class JobsCounted(Struct, frozen=True, tag=True):
    """How many batch jobs there are now, by status."""

    by_status: dict[str, int]


class JobEnded(Struct, frozen=True, tag=True):
    status: str


class LinesAnswered(Struct, frozen=True, tag=True):
    """Lines of batch jobs were answered."""

    outcome: Literal["completed", "failed"]
    count: int


Count = Answered | NotAsked | JobsCounted | JobEnded | LinesAnswered


def record_count(message: Count, metrics: Metrics | PoolMetrics) -> None:
    """Count in the metrics what the message reports."""
    match message:
        case Answered():
            metrics.observe_http(message.route, message.status, message.seconds)
        case NotAsked():
            metrics.refused(message.code)
        case JobsCounted():
            metrics.batch.jobs(message.by_status)
        case JobEnded():
            metrics.batch.ended(message.status)
        case LinesAnswered():
            metrics.batch.lines(message.outcome, message.count)
