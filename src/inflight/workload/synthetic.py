"""Draw workloads: classes of traffic, arrivals and a seed make the same entries every time.

Every kind of draw of every class has a random stream of its own, named after both: a change of one class leaves the
draws of the others as they were (their times too, where they have arrivals of their own).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from inflight.workload.arrivals import Arrivals, AtOnce
from inflight.workload.classes import TrafficClass, session_block_size, session_ids
from inflight.workload.workload import Entry, Workload, WorkloadError


def synthesize(
    classes: Sequence[TrafficClass],
    *,
    arrivals: Arrivals | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    concurrency: int | None = None,
) -> Workload:
    """Draw a workload.

    Args:
        classes: of traffic.
        arrivals: of all classes with a share: an open loop, in which concurrency limits the requests in flight without
            moving the times that latencies count from. None: a closed loop of this concurrency; without one, all at
            once.
        requests: maximum number of requests.
        duration_s: conversations begin within this time.
        seed: of all draws.
        concurrency: maximum requests in flight.

    Raises:
        WorkloadError: the arguments do not go together.
    """
    _check(classes, arrivals, requests, duration_s, concurrency)
    shared = [_tagged(classes, arrivals or AtOnce(), seed)] if any(one.share for one in classes) else []
    own = [_own(one, seed) for one in classes if one.arrivals is not None]
    sources = {one.name: _Source(one, seed) for one in classes}
    entries: list[Entry] = []
    for arrival, name in heapq.merge(*shared, *own):
        if arrival > (math.inf if duration_s is None else duration_s) or len(entries) == requests:
            break
        for entry in sources[name].conversation(arrival, len(entries)):
            if len(entries) == requests:
                break
            entries.append(entry)
    closed = arrivals is None and concurrency is not None and not own
    loop = f"closed loop of {concurrency}" if closed else str(arrivals or AtOnce()) if shared else ""
    name = "; ".join([*filter(None, [loop]), *map(str, classes), f"seed {seed}"])
    return Workload(tuple(entries), name, concurrency, closed)


class _Source:
    """Draws the requests of one class."""

    def __init__(self, traffic: TrafficClass, seed: int):
        self._traffic = traffic
        self._groups, self._turns, self._thinking = (
            _stream(seed, traffic.name, k) for k in ("group", "turns", "think")
        )
        self._input, self._output = _stream(seed, traffic.name, "input"), _stream(seed, traffic.name, "output")
        self._conversations = 0
        size = session_block_size(traffic.prefix) if traffic.sessions.several else traffic.prefix.block_size
        self._block_size = size
        groups = range(traffic.prefix.groups or 1)
        self._shared = [traffic.prefix.ids(traffic.name, group, size) if size else () for group in groups]
        self._first = Entry(
            arrival=0.0,
            prompt_tokens=0,
            output_tokens=0,
            max_tokens=traffic.max_tokens,
            block_size=size,
            traffic=traffic.name,
            lane=traffic.lane,
            tenant=traffic.tenant,
            priority=traffic.priority,
            targets=traffic.targets,
        )

    def conversation(self, arrival: float, index: int) -> Iterator[Entry]:
        """Draw the turns of the next conversation. index: of its first turn in the workload."""
        traffic, sessions = self._traffic, self._traffic.sessions
        shared = self._shared[traffic.prefix.draw_group(self._groups)]
        session = f"{traffic.name}/{self._conversations}" if traffic.sessions.several else ""
        self._conversations += 1
        so_far = traffic.prefix.tokens
        for turn in range(sessions.turns.draw(self._turns)):
            lengths = traffic.input if turn == 0 or sessions.added is None else sessions.added
            prompt_tokens, output_tokens = so_far + lengths.draw(self._input), self._draw_output()
            yield replace(
                self._first,
                arrival=arrival,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                prefix=session_ids(session, shared, prompt_tokens, self._block_size) if session else shared,
                session=session,
                after=index + turn - 1 if turn else None,
                think_s=sessions.draw_think(self._thinking) if turn else 0.0,
            )
            so_far = prompt_tokens + output_tokens

    def _draw_output(self) -> int:
        drawn = self._traffic.output.draw(self._output)
        return drawn if self._traffic.max_tokens is None else min(drawn, self._traffic.max_tokens)


def _stream(seed: int, *names: str) -> Random:
    return Random("/".join((str(seed), *names)))  # text is hashed alike in every process


def _tagged(classes: Sequence[TrafficClass], arrivals: Arrivals, seed: int) -> Iterator[tuple[float, str]]:
    """Yield the mixture's arrivals with a class drawn for each."""
    names = [one.name for one in classes if one.share is not None]
    sums = list(accumulate(one.share for one in classes if one.share is not None))
    lots = _stream(seed, "class")
    for time in arrivals.times(_stream(seed, "arrivals")):
        yield time, lots.choices(names, cum_weights=sums)[0]


def _own(traffic: TrafficClass, seed: int) -> Iterator[tuple[float, str]]:
    if traffic.arrivals is not None:
        for time in traffic.arrivals.times(_stream(seed, traffic.name, "arrivals")):
            yield time, traffic.name


def _check(
    classes: Sequence[TrafficClass],
    arrivals: Arrivals | None,
    requests: int | None,
    duration_s: float | None,
    concurrency: int | None,
) -> None:
    if not classes:
        raise WorkloadError("A workload needs a class of traffic; 0 are given.")
    twice = {one.name for one in classes if sum(other.name == one.name for other in classes) > 1}
    if twice:
        raise WorkloadError(f"Two classes have the name {min(twice)!r}; give each a name, by which results are shown.")
    if requests is None and duration_s is None:
        raise WorkloadError("Arrivals have no end; say how many requests, or how many seconds of arrivals.")
    if requests is not None and requests < 1:
        raise WorkloadError(f"The workload is to have {requests} requests; give a number from 1.")
    if duration_s is not None and not 0 < duration_s < math.inf:
        raise WorkloadError(f"The workload is to last {duration_s:g} s; give seconds above 0.")
    if concurrency is not None and concurrency < 1:
        raise WorkloadError(f"The concurrency is {concurrency}; give a number from 1.")
    mixed = any(one.share is not None for one in classes)
    if arrivals is not None and not mixed:
        raise WorkloadError(f"Arrivals {arrivals} are given, but every class has its own; leave one of both out.")
    if requests is None and mixed and isinstance(arrivals or AtOnce(), AtOnce):
        raise WorkloadError("All requests come at once, so that seconds do not say how many; give their number.")
    if mixed and isinstance(arrivals or AtOnce(), AtOnce) and any(one.arrivals is not None for one in classes):
        raise WorkloadError(
            "Some classes have arrivals of their own, and those with a share come at once, before all others; "
            "give arrivals for these too."
        )
