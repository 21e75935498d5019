"""Sessions of agents: how much of their prompts the prefix cache has, by what is evicted first, at three memory sizes.

The pattern is that of agents as published (median 43 turns, prompts that grow to 142 thousand tokens), with a sixteenth
of the tokens: a system prompt that all share, a task, and turns that each add an answer and what a tool said. A turn
whose answer calls a tool is followed by the next one in a tool's time, any other in a person's, or by none. Sessions
come as they like (Poisson), and each sends its next turn a gap after its last answer. The shape below was fixed before
the first run. `--gaps regular` has the same sessions in steady turns, as those of an orchestrator that asks its agents
one after the other.

The engine's own scheduler and memory run on virtual time, with the step times of a GPU: once with the least recently
released blocks evicted first (LRU), once with those whose session is worth least, as names and gaps show
alone, and once with requests that offer tools, so that the engine sees which answers call one. `foresight` computes
what an order of eviction could reach that knows when each session comes back. Memory is counted in what the sessions
that are open at a time hold together. Seeds below 100 are for reports, those from 100 on for trying.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field
from itertools import count, islice
from statistics import fmean
from typing import Literal

from benchmarks.comparison import log_line, publish
from benchmarks.foresight import ServedTurn, foreseen
from benchmarks.results import table
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.simulate.executor import SimulatedExecutor
from inflight.workload.lengths import Lognormal

BLOCK, BUDGET, ROWS = 16, 2048, 64
SYSTEM, TASK = 256, Lognormal(192, 768, 2048)  # tokens, a sixteenth of 4,096 and 3,072
TURNS = Lognormal(43, 200, 300)
ANSWER, TOOL = Lognormal(8, 32, 64), Lognormal(160, 900, 2000)  # tokens of a turn; answers are short, to save steps
WINDOW = 12_000  # tokens, a sixteenth of 192 thousand: a session ends before it
TOOL_GAP, PERSON_GAP, PERSONS = (4.0, 60.0), (90.0, 1500.0), 0.15  # seconds (median, p99), and the share of persons'
REGULAR_GAP = (40.0, 60.0)
RATE, SESSIONS = 1 / 40, 60  # sessions a second, and in all
QUARTER = 0.25
SHARES = (1 / 6, QUARTER, 0.5)
SAID = 0  # what every simulated token is


@dataclass(slots=True)
class Turn:
    """gap: before it, from the last answer's end. calls: its answer ends in a tool call."""

    added: tuple[int, ...]
    answer: int
    gap: float
    calls: bool = False


@dataclass(slots=True)
class Talk:
    """tokens: of the prompt so far."""

    name: str
    begins: float
    turns: list[Turn]
    tokens: list[int] = field(default_factory=list)
    at: int = 0


class Steps:
    """A step of a model of 8 B parameters on an H100, roughly: weights are read, tokens are computed."""

    name = "8 B on an H100"

    def seconds(self, features: Features) -> float:
        tokens = features.tokens * 2.6e-5 + features.prefill_context * 6.5e-10 + features.decode_context * 4.5e-8
        return 0.006 + tokens

    def extrapolates(self, features: Features) -> None:
        """The formula is good everywhere."""


def talks(seed: int, regular: bool) -> list[Talk]:
    rng, found, now = random.Random(seed), [], 0.0
    system = tuple(rng.randrange(30_000) for _ in range(SYSTEM))
    for number in range(SESSIONS):
        now += rng.expovariate(RATE)
        turns: list[Turn] = []
        tokens = 0
        for at in range(max(1, TURNS.draw(rng))):
            length = TASK.draw(rng) if at == 0 else TOOL.draw(rng)
            answer = ANSWER.draw(rng)
            tokens += length + answer + (SYSTEM if at == 0 else 0)
            if tokens > WINDOW:
                break
            added = tuple(rng.randrange(30_000) for _ in range(length))
            a_person = rng.random() < PERSONS
            median, p99 = REGULAR_GAP if regular else PERSON_GAP if a_person else TOOL_GAP
            gap = Lognormal(median * 1000, p99 * 1000, 10**8).draw(rng) / 1000
            if turns:
                turns[-1].calls = not a_person or regular
            turns.append(Turn((*system, *added) if at == 0 else added, answer, gap))
        found.append(Talk(f"s{number}", now, turns))
    return found


Eviction = Literal["lru", "gaps", "tools"]  # the last two by worth, without and with what answers show


@dataclass(slots=True)
class Served:
    """hits: share of prompt tokens that were cached. seconds: to the first tokens. turns: as they came."""

    cached: int = 0
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    turns: list[ServedTurn] = field(default_factory=list)

    @property
    def hits(self) -> float:
        return self.cached / self.tokens


def serve(all_talks: list[Talk], blocks: int, eviction: Eviction, named: bool = True, on_host: int = 0) -> Served:
    """on_host: blocks of a tier there."""
    capacity = Capacity(blocks, BLOCK, ROWS, WINDOW + BLOCK, 32_000, host_blocks=on_host)
    scheduler = Scheduler(
        SchedulerConfig(
            capacity,
            Chunked(BUDGET),
            Fcfs(),
            token_budget=BUDGET,
            longest_chunk=BUDGET,
            session_eviction=eviction != "lru",
            host_is_tier=on_host > 0,
        )
    )
    clock = VirtualClock()
    loop = EngineLoop(scheduler, SimulatedExecutor(capacity, Steps()), clock)
    due = [(one.begins, number, Talk(one.name, one.begins, one.turns)) for number, one in enumerate(all_talks)]
    heapq.heapify(due)
    open_: dict[str, tuple[float, int, Talk]] = {}
    served = Served()
    while due or open_:
        while due and due[0][0] <= clock.now():
            _, number, talk = heapq.heappop(due)
            talk.tokens += talk.turns[talk.at].added
            loop.add(_request(talk, clock.now(), eviction, named))
            open_[talk.name] = clock.now(), number, talk
        if loop.idle:
            clock.wait_until(due[0][0])
            continue
        outcome = loop.advance()
        for event in outcome if isinstance(outcome, list) else ():
            if not isinstance(event, FinishedEvent):
                continue
            came, number, talk = open_.pop(event.request_id)
            served.cached += event.timings.cached_tokens
            served.tokens += len(talk.tokens)
            served.seconds.append((event.timings.ttft_ms or 0.0) / 1e3)
            turn = talk.turns[talk.at]
            served.turns.append(ServedTurn(talk.name, came, clock.now(), len(talk.tokens), turn.answer))
            talk.tokens += [SAID] * turn.answer
            talk.at += 1
            if talk.at < len(talk.turns):
                heapq.heappush(due, (clock.now() + talk.turns[talk.at].gap, number, talk))
    return served


def _request(talk: Talk, now: float, eviction: Eviction, named: bool) -> Request:
    turn = talk.turns[talk.at]
    marks = () if eviction != "tools" else ((SAID if turn.calls else SAID + 1,),)
    return Request(
        request_id=talk.name,
        prompt_token_ids=tuple(talk.tokens),
        params=SamplingParams(temperature=0, max_tokens=turn.answer, ignore_eos=True),
        arrival=now,
        session=talk.name if named else "",
        call_marks=marks,
    )


def working_set(all_talks: list[Talk]) -> int:
    """Blocks that the sessions that are open at a time hold together, on average over time, if nothing takes time."""
    area, last = 0.0, 0.0
    for talk in all_talks:
        now, tokens = talk.begins, 0
        for turn in talk.turns:
            tokens += len(turn.added) + turn.answer
            area += tokens * turn.gap
            now += turn.gap
        last = max(last, now)
    return int(area / last / BLOCK)


@dataclass(slots=True)
class Runs:
    """Hold one eviction order's figures over seeds. known: tokens that would be cached, were next turns known."""

    cached: float = 0.0
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    known: float = 0.0

    def add(self, one: Served) -> None:
        self.cached += one.cached
        self.tokens += one.tokens
        self.seconds += one.seconds

    @property
    def hits(self) -> float:
        return self.cached / self.tokens


def fits(all_talks: list[Talk]) -> bool:
    """Whether the smallest memory holds the longest of their texts; otherwise the seed is passed over."""
    longest = max(sum(len(turn.added) + turn.answer for turn in one.turns) for one in all_talks)
    return longest // BLOCK + 1 < working_set(all_talks) * min(SHARES)


def row(of_seeds: list[list[Talk]], share: float, of_host: float = 0.0) -> list[str]:
    """share, of_host: of the working set, on the device and on the host."""
    lru, gaps, tools, grown = Runs(), Runs(), Runs(), Runs()
    for all_talks in of_seeds:
        whole = working_set(all_talks)
        blocks, on_host = int(whole * share), int(whole * of_host)
        first = serve(all_talks, blocks, "lru", on_host=on_host)
        lru.add(first)
        lru.known += foreseen(first.turns, blocks + on_host, BLOCK, SYSTEM) * first.tokens
        gaps.add(serve(all_talks, blocks, "gaps", on_host=on_host))
        tools.add(serve(all_talks, blocks, "tools", on_host=on_host))
        if share == QUARTER and not on_host:
            grown.add(serve(all_talks, blocks, "tools", named=False))
        log_line(f"{share:g} + {of_host:g}: so far LRU {lru.hits:.4f}, gaps {gaps.hits:.4f}, tools {tools.hits:.4f}")
    known = lru.known / lru.tokens
    return [
        f"{share:.1%}" + (f", and {of_host:.0%} on the host" if of_host else ""),
        f"{lru.hits:.1%}",
        f"{gaps.hits:.1%}",
        f"{tools.hits:.1%}",
        f"{grown.hits:.1%}" if grown.tokens else "",
        f"{known:.1%}",
        f"{tools.hits / lru.hits:.2f} ×",
        f"{known / lru.hits:.2f} ×",
        f"{(tools.hits - lru.hits) / (known - lru.hits):.0%}",
        f"{fmean(lru.seconds):.3f} s → {fmean(tools.seconds):.3f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seeds", type=int, default=1, help="so many (default 1)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    parser.add_argument("--gaps", choices=["agents", "regular"], default="agents")
    arguments = parser.parse_args()
    regular = arguments.gaps == "regular"
    of_seeds = list(islice(filter(fits, (talks(seed, regular) for seed in count(arguments.seed))), arguments.seeds))
    log_line(f"{[working_set(one) for one in of_seeds]} blocks of {BLOCK} tokens are open at a time")
    rows = [row(of_seeds, share) for share in SHARES]
    rows.append(row(of_seeds, QUARTER, QUARTER))
    heads = [
        *("memory", "hits, LRU", "by worth, of gaps alone", "by worth, tools offered", "the same, unnamed"),
        *("next turn known", "worth / LRU", "known / LRU", "of what knowing gains", "mean TTFT"),
    ]
    title, variant = ("Sessions of agents, in steady turns", "regular") if regular else ("Sessions of agents", "")
    publish("sessions", title, table(heads, rows), arguments.write, variant)


if __name__ == "__main__":
    main()
