"""A trace's conversations through the engine's scheduler: what an order of eviction brings in seconds.

    python -m benchmarks.session_engine FILE [--requests 2500] [--speed 0.4] [--write]

As `session_trace`, with its conversations and memory sizes (of blocks of 512 tokens), but with steps: the scheduler on
virtual time, the step times of a model of 8 B parameters on an H100, answers as long as the trace's and kept in the
cache. Arrivals are spread within the 3 s that the conversation trace rounds to, at `--speed` times the trace's pace.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from benchmarks.session_trace import turns_of, working_set
from benchmarks.sessions import Steps
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import quantile
from inflight.simulate.executor import SimulatedExecutor
from inflight.workload.contents import Contents
from inflight.workload.traces import load
from inflight.workload.transform import speed, spread
from inflight.workload.workload import Entry

BLOCK, BUDGET, ROWS = 512, 8192, 64
SHARES = (1 / 4, 1 / 2)
RUNS = (("lru", False, True), ("sessions", True, True), ("sessions, unnamed", True, False))


@dataclass(slots=True)
class Served:
    """cached, tokens: of prompts. ttfts: in seconds. seconds: of the whole run."""

    cached: int = 0
    tokens: int = 0
    answered: int = 0
    seconds: float = 0.0
    ttfts: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        ordered = sorted(self.ttfts)
        mean, p95, p99 = fmean(ordered), quantile(ordered, 0.95), quantile(ordered, 0.99)
        rate = (self.tokens + self.answered) / self.seconds
        return [f"{self.cached / self.tokens:.1%}", f"{mean:.2f} s", f"{p95:.2f} s", f"{p99:.2f} s", f"{rate:,.0f}"]


def serve(entries: list[Entry], talks: list[int], blocks: int, by_value: bool, named: bool = True) -> Served:
    longest = blocks * BLOCK
    capacity = Capacity(blocks, BLOCK, ROWS, longest, 256)
    config = SchedulerConfig(
        capacity, Chunked(BUDGET), Fcfs(), token_budget=BUDGET, longest_chunk=BUDGET, session_eviction=by_value
    )
    clock = VirtualClock()
    loop = EngineLoop(Scheduler(config), SimulatedExecutor(capacity, Steps()), clock)
    contents = Contents(entries, 256, width=1)
    served, number, left = Served(), 0, len(entries)
    while left:
        while number < len(entries) and entries[number].arrival <= clock.now():
            one = entries[number]
            loop.add(
                Request(
                    request_id=str(number),
                    prompt_token_ids=contents.prompt(number),
                    params=SamplingParams(temperature=0, max_tokens=max(1, one.output_tokens), ignore_eos=True),
                    arrival=one.arrival,
                    session=str(talks[number]) if named else "",
                )
            )
            number += 1
        if loop.idle:
            clock.wait_until(entries[number].arrival)
            continue
        outcome = loop.advance()
        for event in outcome if isinstance(outcome, list) else ():
            if isinstance(event, FinishedEvent):
                left -= 1
                one = entries[int(event.request_id)]
                served.cached += event.timings.cached_tokens
                served.tokens += one.prompt_tokens
                served.answered += one.output_tokens
                served.ttfts.append((event.timings.ttft_ms or 0.0) / 1e3)
    served.seconds = clock.now()
    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=2500, help="of the trace's beginning (default 2500)")
    parser.add_argument("--speed", type=float, default=0.4, help="of the trace's arrivals (default 0.4)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    turns, trace = turns_of(arguments.file), load(arguments.file)
    whole = working_set(turns)
    trace = speed(spread(trace) if trace.bucket_s else trace, arguments.speed)
    order = sorted(range(len(trace.entries)), key=lambda at: trace.entries[at].arrival)[: arguments.requests]
    entries, talks = [trace.entries[at] for at in order], [turns[at].talk for at in order]
    rows = []
    for share in SHARES:
        blocks = int(whole * share)
        for name, by_value, named in (
            ("lru", False, True),
            ("sessions", True, True),
            ("sessions, unnamed", True, False),
        ):
            cells = serve(entries, talks, blocks, by_value, named).cells()
            log_line(f"{share:.0%} {name}: {cells}")
            rows.append([f"{share:.0%} ({blocks:,} blocks)", name, *cells])
    heads = [
        "memory",
        "`--kv-eviction`",
        "hits",
        "TTFT mean",
        "TTFT p95",
        "TTFT p99",
        "tokens/s, prompts' and answers'",
    ]
    body = (
        f"{len(entries):,} requests at {arguments.speed:g} times the trace's pace; tokens/s are of prompts and answers "
        "together.\n\n" + table(heads, rows)
    )
    publish("session_engine", "Conversations of a published trace, in seconds", body, arguments.write)


if __name__ == "__main__":
    main()
