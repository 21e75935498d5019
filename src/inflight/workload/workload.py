"""A workload: all requests that are offered, when each comes, how long it is, what its prompt shares with others, and
how they follow each other.

What arrivals, synthetic lengths and every trace format are turned into. Knows what is offered and when; `pacing` turns
it into who is due now. Knows no server and no engine.
"""

from __future__ import annotations

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
