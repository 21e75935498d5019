"""The interface of a judge: what it is asked to send, how it is run, and the figures of a run."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inflight.metrics.definitions import Percentiles, percentiles, tpot
from inflight.metrics.observation import Observation
from inflight.metrics.summary import summarize
from tests.foreign.environments import Environment

if TYPE_CHECKING:
    from benchmarks.judges.definitions import Definition

PACKAGES = Path(__file__).parent / "packages"


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic that a judge is asked for: an open loop, as Poisson arrivals where the judge has them."""

    requests: int
    rate: float
    concurrency: int
    input_tokens: int
    output_tokens: int

    @property
    def seconds(self) -> float:
        """How long sending takes."""
        return self.requests / self.rate


@dataclass(frozen=True, slots=True)
class Target:
    """The server as a judge reaches it. tokenizer: folder of the model's tokenizer."""

    url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds; None where a judge does not report it."""

    mean: float | None = None
    p50: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: Percentiles) -> Latency:
        return cls(values.mean, values.p50, values.p99)

    @classmethod
    def of_ms(cls, mean: float | None, p50: float | None, p99: float | None) -> Latency:
        return cls(*(None if value is None else value / 1e3 for value in (mean, p50, p99)))


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. failed: requests without a complete answer. None: not reported."""

    requests: int
    failed: int
    output_tokens: int | None = None
    input_tokens: int | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft: Latency = field(default_factory=Latency)
    tpot: Latency = field(default_factory=Latency)
    itl: Latency = field(default_factory=Latency)

    @classmethod
    def of_observations(cls, observations: Sequence[Observation]) -> Figures:
        """Return our figures of the whole run, from the first request to the last answer, as judges count.

        TPOT divides by n - 1 here, as theirs, also where the first frame brought several tokens.
        """
        summary = summarize(observations)
        tpots = (
            tpot(one.first_token, one.last_token, one.longest_output)
            for one in observations
            if one.outcome == "completed" and one.first_token is not None and one.last_token is not None
        )
        return cls(
            requests=summary.requests,
            failed=summary.offered - summary.requests,
            output_tokens=summary.output_tokens,
            input_tokens=summary.prompt_tokens,
            requests_per_s=summary.requests_per_s,
            output_tokens_per_s=summary.output_tokens_per_s,
            ttft=Latency.of(summary.ttft),
            tpot=Latency.of(percentiles(value for value in tpots if value is not None)),
            itl=Latency.of(summary.itl),
        )


class Judge(ABC):
    """A load generator.

    Attributes:
        name: On the command line.
        title: For readers.
        environment: Its packages.
        variables: Environment variables that it needs.
        notes: How its definitions differ from ours; a sentence each.
    """

    name: str
    title: str
    environment: Environment
    variables: Mapping[str, str] = MappingProxyType({})
    notes: Sequence[str] = ()

    @abstractmethod
    def command(self, target: Target, load: Load, folder: Path) -> Sequence[str]:
        """Return program and arguments; files go to the folder."""

    @abstractmethod
    def figures(self, folder: Path, output: str) -> Figures:
        """Read the result of a run. output: what the program printed."""

    @abstractmethod
    def definition(self, target: Target, folder: Path) -> Definition:
        """Return how it makes figures. folder: of the run."""


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
