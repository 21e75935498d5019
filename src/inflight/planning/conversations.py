"""Means of the conversations of several classes of traffic, and by Little's law how many of them are open at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

from inflight.workload.classes import TrafficClass

DRAWS = 2000  # that a mean is taken from


@dataclass(frozen=True)
class Conversations:
    """Conversations of classes that have shares of them; a single request is one of one turn."""

    classes: tuple[TrafficClass, ...]

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Return the share of the conversations, by class."""
        whole = sum(one.share or 0.0 for one in self.classes)
        return {one.name: (one.share or 0.0) / whole for one in self.classes}

    @cached_property
    def turns(self) -> Mapping[str, float]:
        """Return the mean turns of a conversation, by class."""
        return {one.name: _mean(one.sessions.turns.draw, f"turns of {one.name}") for one in self.classes}

    @property
    def have_turns(self) -> bool:
        """Whether there are conversations of several turns."""
        return any(one.sessions.several for one in self.classes)

    @property
    def mean_turns(self) -> float:
        """Return the requests of a conversation."""
        return sum(self.shares[name] * turns for name, turns in self.turns.items())

    @property
    def mean_think(self) -> float:
        """Return the seconds of a conversation in which its next turn is not sent yet."""
        return sum(self.shares[one.name] * self.think_seconds(one) for one in self.classes)

    def think_seconds(self, traffic: TrafficClass) -> float:
        """Return the mean seconds between the answers and the next turns of a conversation of a class."""
        return max(0.0, self.turns[traffic.name] - 1) * traffic.sessions.think_s

    def share_of_requests(self, name: str) -> float:
        """Return the share of a class in the requests."""
        return self.shares[name] * self.turns[name] / self.mean_turns

    def programs_per_request(self, name: str) -> float:
        """Return how many programs, conversations of several turns, a request of a class has; "": of all."""
        several = sum(self.shares[one.name] for one in self.classes if name in ("", one.name) and one.sessions.several)
        return several / self.mean_turns

    @cached_property
    def slowest(self) -> float:
        """Return how many times the mean the answers of the class with the longest ones take."""
        means = {one.name: _mean(one.output.draw, f"answers of {one.name}") for one in self.classes}
        return max(means.values()) / sum(self.share_of_requests(name) * mean for name, mean in means.items())

    def seconds(self, e2e: float) -> float:
        """Return how long a conversation is open. e2e: seconds of an answer."""
        return self.mean_think + self.mean_turns * e2e

    def open_at(self, rate: float, e2e: float) -> float:
        """Return the conversations that are open at once. rate: requests/s. e2e: seconds of an answer."""
        return rate / self.mean_turns * self.seconds(e2e)

    def rate(self, opened: float, e2e: float) -> float:
        """Return the requests/s of so many open conversations. e2e: seconds of an answer."""
        return opened * self.mean_turns / max(1e-9, self.seconds(e2e))


def _mean(draw: Callable[[Random], int], seed: str) -> float:
    drawn = Random(seed)
    return sum(draw(drawn) for _ in range(DRAWS)) / DRAWS
