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

NO_TARGETS = Targets()  # one object for all: entries are made by the million


class WorkloadError(ValueError):
    """A workload cannot be made as asked; the sentence says why, where, and what to do."""


@dataclass(slots=True)  # a frozen one takes seven times as long to make
class Entry:
    """One request that is offered; not changed once it is made.

    Attributes:
        arrival: intended send time in seconds after the workload's beginning.
        prompt_tokens: length of the prompt.
        output_tokens: length that the answer is to have.
        max_tokens: the request's limit; None: output_tokens.
        prefix: content ids of the prompt's leading blocks of block_size tokens; the prompt's end may cut the last one
            off. Equal ids at equal positions stand for equal tokens; the rest of the prompt is the entry's own.
        prompt: the prompt itself, where a trace has it: text or token ids; of a later turn only what it adds.
        cache_salt: prompts share cached prefixes only with prompts of the same salt.
        session: name of the conversation.
        program: run of an agent that it is a call of; "": the session.
        after: index in the workload of the turn before. This one is sent think_s after that one's answer has ended,
            and not before `arrival`; its prompt begins with the conversation so far.
        traffic: name of its class.
        priority: None: not stated.
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
    program: str = ""

    def moved(self, arrival: float, after: int | None) -> Entry:
        """Return it at another time, behind another entry. Spelled out, since `replace` takes five times as long."""
        return Entry(
            arrival, self.prompt_tokens, self.output_tokens, self.max_tokens, self.prefix, self.block_size, self.prompt,
            self.cache_salt, self.session, after, self.think_s, self.traffic, self.lane, self.tenant, self.priority,
            self.targets, self.program,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """All requests that are offered.

    Attributes:
        entries: by arrival.
        name: a description of how they were made.
        concurrency: maximum requests in flight; None: unbounded.
        closed: a closed loop: an entry is due when an earlier one has ended, and its latency counts from then.
            Otherwise latency counts from `arrival`, also where the limit on concurrency delayed it.
        notes: for readers of results (rows dropped and why, times spread).
        until: nothing is sent from this second on, as in a closed loop of a given time; None: all is.
        sessions: conversations that are open all the time: the first so many begin at their arrival, each later one
            when another ends; None: each begins at its arrival.
    """

    entries: tuple[Entry, ...]
    name: str
    concurrency: int | None = None
    closed: bool = False
    notes: tuple[str, ...] = ()
    until: float | None = None
    sessions: int | None = None


class Pacer:
    """Says which entries are due: open loop, closed loop, both, and turns that follow an answer."""

    def __init__(self, workload: Workload):
        self._entries = workload.entries
        self._closed = workload.closed
        self._until = math.inf if workload.until is None else workload.until
        self._bounded = workload.concurrency is not None
        self._free_since = deque([0.0] * (workload.concurrency or 0))  # of free slots, the longest free first
        self._followers: dict[int, list[int]] = {}
        begun = [index for index, entry in enumerate(workload.entries) if entry.after is None]
        self._coming = [(workload.entries[index].arrival, index) for index in begun[: workload.sessions]]
        self._waiting = deque(begun[len(self._coming) :])  # first requests of conversations, each until another ends
        for index, entry in enumerate(workload.entries):
            if entry.after is not None:
                self._followers.setdefault(entry.after, []).append(index)
        heapq.heapify(self._coming)
        self._left = len(workload.entries)  # not ended

    @property
    def done(self) -> bool:
        return not self._left

    def next_due(self) -> float | None:
        """Return when the next entry is due if none ends before; None: it depends on an end, or none is left."""
        if not self._coming or (self._bounded and not self._free_since):
            return None
        return self._coming[0][0]

    def take_due(self, now: float) -> list[tuple[int, float]]:
        """Take the entries that are due, as (index, intended send time); they are in flight until `ended`.

        In a closed loop the intended time is when both the entry and a free slot were there."""
        if now >= self._until:
            self._close()
        found = []
        while self._coming and self._has_room and self._coming[0][0] <= now:
            time, index = heapq.heappop(self._coming)
            free_since = self._free_since.popleft() if self._bounded else 0.0
            found.append((index, max(time, free_since) if self._closed else time))
        return found

    def ended(self, index: int, now: float) -> None:
        """End an entry that was answered, refused or failed: its slot is free, and its conversation goes on."""
        self._left -= 1
        if self._bounded:
            self._free_since.append(now)
        followers = self._followers.pop(index, ())
        for follower in followers:
            entry = self._entries[follower]
            heapq.heappush(self._coming, (max(entry.arrival, now + entry.think_s), follower))
        if not followers and self._waiting:
            heapq.heappush(self._coming, (now, self._waiting.popleft()))

    def _close(self) -> None:
        """Drop the entries that were not sent."""
        self._left -= len(self._coming) + len(self._waiting) + sum(map(len, self._followers.values()))
        self._coming.clear()
        self._waiting.clear()
        self._followers.clear()

    @property
    def _has_room(self) -> bool:
        return not self._bounded or bool(self._free_since)
