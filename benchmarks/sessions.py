"""Sessions of agents: how much of their prompts the prefix cache has, by what is evicted first, at three memory sizes.

The pattern is that of agents as published (median 43 turns, prompts that grow to 142 thousand tokens), with a sixteenth
of the tokens: a system prompt that all share, a task, and turns that each add an answer and what a tool said. Most gaps
are a tool's, some a person's. Sessions come as they like (Poisson), and each sends its next turn a gap after its last
answer. The shape below was fixed before the first run. `--gaps regular` has the same sessions in steady turns, as those
of an orchestrator that asks its agents one after the other.

The engine's own scheduler and memory run on virtual time, with the step times of a GPU, once with the least recently
released blocks evicted first (LRU), once with those whose session is worth least, with the sessions named by the
client, and at a quarter of the memory with nothing but growing prefixes. Memory is counted in what the sessions
that are open at a time hold together.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field

from benchmarks.comparison import publish, tell
from benchmarks.results import table
from inflight.core.policies.fcfs import Fcfs
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


@dataclass(slots=True)
class Turn:
    added: tuple[int, ...]
    answer: int
    gap: float  # before it, from the last answer's end


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

    def seconds(self, held: Features) -> float:
        tokens = held.tokens * 2.6e-5 + held.prefill_context * 6.5e-10 + held.decode_context * 4.5e-8
        return 0.006 + tokens

    def extrapolates(self, held: Features) -> None:
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
            median, p99 = PERSON_GAP if rng.random() < PERSONS else TOOL_GAP
            if regular:
                median, p99 = REGULAR_GAP
            gap = Lognormal(median * 1000, p99 * 1000, 10**8).draw(rng) / 1000
            turns.append(Turn((*system, *added) if at == 0 else added, answer, gap))
        found.append(Talk(f"s{number}", now, turns))
    return found


@dataclass(frozen=True, slots=True)
class Served:
    """hits: share of prompt tokens that were cached. seconds: mean to the first token."""

    hits: float
    seconds: float


def serve(all_talks: list[Talk], blocks: int, sessions: bool, named: bool) -> Served:
    capacity = Capacity(blocks, BLOCK, ROWS, WINDOW + BLOCK, 32_000)
    scheduler = Scheduler(
        capacity, Chunked(BUDGET), Fcfs(), token_budget=BUDGET, longest_chunk=BUDGET, session_eviction=sessions
    )
    clock = VirtualClock()
    loop = EngineLoop(scheduler, SimulatedExecutor(capacity, Steps()), clock)
    due = [(one.begins, number, Talk(one.name, one.begins, one.turns)) for number, one in enumerate(all_talks)]
    heapq.heapify(due)
    open_: dict[str, tuple[int, Talk]] = {}
    firsts: list[float] = []
    prompts = [0, 0]  # tokens that were cached, and all
    while due or open_:
        while due and due[0][0] <= clock.now():
            _, number, talk = heapq.heappop(due)
            turn = talk.turns[talk.at]
            talk.tokens += turn.added
            params = SamplingParams(temperature=0, max_tokens=turn.answer, ignore_eos=True)
            loop.add(
                Request(
                    request_id=talk.name,
                    prompt_token_ids=tuple(talk.tokens),
                    params=params,
                    arrival=clock.now(),
                    session=talk.name if named else "",
                )
            )
            open_[talk.name] = number, talk
        if loop.idle:
            clock.wait_until(due[0][0])
            continue
        outcome = loop.advance()
        for event in outcome if isinstance(outcome, list) else ():
            if not isinstance(event, FinishedEvent):
                continue
            number, talk = open_.pop(event.request_id)
            prompts[0] += event.timings.cached_tokens
            prompts[1] += len(talk.tokens)
            firsts.append((event.timings.ttft_ms or 0.0) / 1e3)
            talk.tokens += [0] * talk.turns[talk.at].answer  # what every simulated token is
            talk.at += 1
            if talk.at < len(talk.turns):
                heapq.heappush(due, (clock.now() + talk.turns[talk.at].gap, number, talk))
    return Served(prompts[0] / prompts[1], sum(firsts) / len(firsts))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    parser.add_argument("--gaps", choices=["agents", "regular"], default="agents")
    arguments = parser.parse_args()
    all_talks = talks(arguments.seed, arguments.gaps == "regular")
    whole, rows = working_set(all_talks), []
    tell(f"{whole:,} blocks of {BLOCK} tokens are open at a time")
    for share in SHARES:
        blocks = int(whole * share)
        lru, named = serve(all_talks, blocks, False, False), serve(all_talks, blocks, True, True)
        grown = serve(all_talks, blocks, True, False) if share == QUARTER else None
        tell(f"{share:g}: {blocks} blocks, LRU {lru}, named {named}, grown {grown}")
        rows.append(
            [
                f"{share:.1%} ({blocks:,} blocks)",
                f"{lru.hits:.1%}",
                f"{named.hits:.1%}",
                "" if grown is None else f"{grown.hits:.1%}",
                f"{named.hits / lru.hits:.2f} ×",
                f"{lru.seconds:.3f} s → {named.seconds:.3f} s",
            ]
        )
    heads = ["memory", "hits, LRU", "by worth, named", "by worth, growing prefixes", "named / LRU", "mean TTFT"]
    title = "Sessions of agents" + (", in steady turns" if arguments.gaps == "regular" else "")
    variant = "regular" if arguments.gaps == "regular" else ""
    publish("sessions", title, table(heads, rows), arguments.write, variant)


if __name__ == "__main__":
    main()
