"""A workload: the requests that are offered, when and how long each is, and the pacer that says which are due.

Arrivals, synthetic lengths and every trace format are turned into entries. The pacer is sans-IO: times are arguments,
in seconds after the workload's beginning, so that a load client, an offline run and a simulation drive it alike.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from inflight.metrics.observation import Targets

NO_TARGETS = Targets()  # one for all: entries are made by the million


class WorkloadError(ValueError):
    """A workload cannot be made as asked; the sentence says why, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """arrival: intended send time in seconds after the workload's beginning. prompt_tokens and output_tokens: lengths;
    output_tokens is what the answer is to have, max_tokens (None: the same) what the server is told it may have.

    prefix: contents of the prompt's leading blocks of block_size tokens each; the prompt's end may cut the last one
    off. Equal ids at equal places stand for equal tokens; what the prefix does not cover is the entry's own. prompt:
    the prompt itself, where a trace holds it: text or token ids; of a later turn (see `after`) only what it adds.
    cache_salt: prompts share cached prefixes only with prompts of the same salt.
    session: entries of one conversation. after: index in the workload of the turn before; then this one is sent
    think_s after that one's answer has ended, and not before `arrival`; its prompt begins with the conversation so far.
    traffic: name of its class. priority None: not stated.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    prefix: tuple[int, ...] = ()
    block_size: int = 0
    prompt: str | tuple[int, ...] | None = None
    cache_salt: str = ""
    session: str = ""
    after: int | None = None
    think_s: float = 0.0
    traffic: str = ""
    lane: str = ""
    tenant: str = ""
    priority: int | None = None
    targets: Targets = NO_TARGETS

    def moved(self, arrival: float, after: int | None) -> Entry:
        """The same at another time, behind another entry. Spelled out, since `replace` takes five times as long."""
        return Entry(
            arrival, self.prompt_tokens, self.output_tokens, self.max_tokens, self.prefix, self.block_size, self.prompt,
            self.cache_salt, self.session, after, self.think_s, self.traffic, self.lane, self.tenant, self.priority,
            self.targets,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """entries: by arrival. name: how they were made, in words. notes: what a reader of results must know of them (rows
    dropped and why, times spread).

    concurrency: most requests under way at once; None: no bound. closed: a closed loop: an entry's turn comes when one
    before it has ended, and its latency counts from then. Otherwise latency counts from `arrival`, also where the bound
    on concurrency held it back. until: from this second on nothing is sent, as in a closed loop of a given time; None:
    all is.
    """

    entries: tuple[Entry, ...]
    name: str
    concurrency: int | None = None
    closed: bool = False
    notes: tuple[str, ...] = ()
    until: float | None = None


class Pacer:
    def __init__(self, workload: Workload):
        self._entries = workload.entries
        self._closed = workload.closed
        self._until = math.inf if workload.until is None else workload.until
        self._bounded = workload.concurrency is not None
        self._places = deque([0.0] * (workload.concurrency or 0))  # free ones: since when, the longest free first
        self._followers: dict[int, list[int]] = {}
        self._coming: list[tuple[float, int]] = []  # heap of (time, index): whose time is known
        for index, entry in enumerate(workload.entries):
            if entry.after is None:
                self._coming.append((entry.arrival, index))
            else:
                self._followers.setdefault(entry.after, []).append(index)
        heapq.heapify(self._coming)
        self._left = len(workload.entries)  # not ended

    @property
    def done(self) -> bool:
        return not self._left

    def next_due(self) -> float | None:
        """When somebody is due if nobody ends before; None: that depends on an end, or nobody is left."""
        return self._coming[0][0] if self._coming and self._has_room else None

    def due(self, now: float) -> list[tuple[int, float]]:
        """(index, intended send time) of all who are due, each told once; they are under way until `ended`.

        In a closed loop the intended time is when both the entry and a place for it were there."""
        if now >= self._until:
            self._close()
        found = []
        while self._coming and self._has_room and self._coming[0][0] <= now:
            time, index = heapq.heappop(self._coming)
            free_since = self._places.popleft() if self._bounded else 0.0
            found.append((index, max(time, free_since) if self._closed else time))
        return found

    def ended(self, index: int, now: float) -> None:
        """Answered, refused or failed. What follows it in its conversation gets its time, and its place is free."""
        self._left -= 1
        if self._bounded:
            self._places.append(now)
        for follower in self._followers.pop(index, ()):
            entry = self._entries[follower]
            heapq.heappush(self._coming, (max(entry.arrival, now + entry.think_s), follower))

    def _close(self) -> None:
        """Who has not begun never will."""
        self._left -= len(self._coming) + sum(map(len, self._followers.values()))
        self._coming.clear()
        self._followers.clear()

    @property
    def _has_room(self) -> bool:
        return not self._bounded or bool(self._places)
