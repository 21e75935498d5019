"""Programs of agents: how long jobs take, by what goes first and what is evicted first.

An agent's program: a task behind a system prompt that all share, then turns, each an answer, a tool call, and a next
prompt with all of the context before it and what the tool said. The pattern is the one published of coding agents: 33
turns (median), tools that take 5.2 s (median; p99 81 s), contexts that grow to a hundred thousand tokens, of which 94 %
was there in the turn before. Programs come at random (Poisson) and each is a closed loop.

The engine's own scheduler and memory run on virtual time, with the step times of a model of 8 B parameters on an H100
and the room that it leaves for keys and values. A simulated token stands for SCALE real ones, and so do steps, so that
a run takes seconds. The shape was fixed before the first run; seeds below 100 are for reports, those from 100 on for
trying.

Capacity is the rate of programs at which their contexts fill the memory, if no program ever waits (Little's law):
blocks / mean over programs of the blocks that one holds × the time that it holds them when it is alone. A job's
completion time (JCT) counts from the program's arrival to its last token.

In the second table requests without a program come as well, one in PLAIN_GAP_S seconds, each with a prompt and an
answer of its own.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from multiprocessing import get_context
from statistics import fmean
from typing import NamedTuple

from benchmarks.comparison import log_line, publish, spread
from benchmarks.engines import Model
from benchmarks.results import table
from inflight.config.engine import EngineSettings, EvictionChoice
from inflight.config.scheduling import SchedulingSettings
from inflight.core.policies import Policy, Rank
from inflight.core.policies.fcfs import Fcfs
from inflight.core.policies.program import Program
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import Clock, VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import quantile
from inflight.simulate.executor import SimulatedExecutor
from inflight.workload.lengths import Lognormal

SCALE = 64  # real tokens, and real steps, of a simulated one
BLOCK, BUDGET, ROWS = 8, 128, 64
BLOCKS = 900  # 460 thousand real tokens: 60 GB
SYSTEM, TASK = 64, Lognormal(48, 192, 512)
TURNS = Lognormal(33, 99, 150)
ANSWER, TOOL = Lognormal(6, 22, 64), Lognormal(30, 175, 500)
GAP_MS = Lognormal(5_200, 81_000, 10**8)
WINDOW = 4_000  # 256 thousand real tokens: a program ends before it
PROGRAMS = 40
LOADS = (0.5, 1.0, 1.2)
HALF_LIFE_S = 60.0
PLAIN_LOADS, PLAIN_GAP_S = (0.75,), 10.0
MIXED_RULES = (0, 1, 5, -1)  # of RULES
PLAIN_PROMPT, PLAIN_ANSWER = Lognormal(16, 64, 256), Lognormal(4, 16, 64)  # a thousand tokens and 256 (medians)


@dataclass(slots=True)
class Turn:
    """gap: seconds that the tool before it takes."""

    added: tuple[int, ...]
    answer: int
    gap: float


@dataclass(slots=True)
class Job:
    name: str
    begins: float
    turns: list[Turn]
    is_program: bool = True
    tokens: list[int] = field(default_factory=list)
    at: int = 0


class Steps:
    """A model of 8 B parameters on an H100, roughly: weights are read, tokens are computed, contexts are read."""

    name = "8 B on an H100"

    def seconds(self, features: Features) -> float:
        contexts = features.prefill_context * 6.5e-10 + features.decode_context * 4.5e-8
        return SCALE * (0.006 + features.tokens * 2.6e-5 + SCALE * contexts)

    def extrapolates(self, features: Features) -> None:
        """The formula is good everywhere."""


class AttainedService(Policy):
    """Least attained service first, input + 2 × output tokens with a half-life, as routers order programs."""

    name = "attained"

    def __init__(self) -> None:
        self._service: dict[str, tuple[float, float]] = {}  # by program: tokens, and when they were counted

    def rank(self, view: SequenceView, now: float) -> Rank:
        tokens, at = self._service.get(view.program, (0.0, 0.0))
        # All decay alike, so that the order of the waiting is that of log2(tokens) + time / half-life.
        return (math.log2(tokens) + at / HALF_LIFE_S if tokens else -math.inf, view.arrival)

    def served(self, view: SequenceView, prompt_tokens: int, output_tokens: int, now: float) -> None:
        tokens, at = self._service.get(view.program, (0.0, now))
        decayed = tokens * 2 ** ((at - now) / HALF_LIFE_S)
        self._service[view.program] = decayed + prompt_tokens + 2 * output_tokens, now


class OrderAlone(Program):
    """The order of programs, without pauses."""

    orders_programs = False


class Rule(NamedTuple):
    """An order and an eviction. by_worth: of sessions; otherwise the least recently released blocks go first."""

    name: str
    make: type[Policy]
    by_worth: bool


RULES = (
    Rule("`fcfs`, LRU", Fcfs, False),
    Rule("`fcfs`, by worth", Fcfs, True),
    Rule("attained service, by worth", AttainedService, True),
    Rule("`program`, LRU", Program, False),
    Rule("`program`, by worth, none paused", OrderAlone, True),
    Rule("`program`, by worth", Program, True),
)


class Outcome(NamedTuple):
    """jcts: seconds, sorted. hits: share of prompt tokens that were cached. seconds: to the end of the last job. plain:
    E2E of requests without a program, in seconds, sorted."""

    jcts: list[float]
    hits: float
    seconds: float
    plain: list[float]

    @property
    def per_hour(self) -> float:
        return len(self.jcts) / self.seconds * 3600


def jobs_of(seed: int, number: int = PROGRAMS) -> list[list[Turn]]:
    rng = random.Random(seed)
    system = tuple(rng.randrange(30_000) for _ in range(SYSTEM))
    found = []
    for _ in range(number):
        turns: list[Turn] = []
        tokens = SYSTEM
        for at in range(max(1, TURNS.draw(rng))):
            length, answer = (TOOL if at else TASK).draw(rng), ANSWER.draw(rng)
            tokens += length + answer
            if tokens > WINDOW:
                break
            added = tuple(rng.randrange(30_000) for _ in range(length))
            turns.append(Turn(added if at else (*system, *added), answer, GAP_MS.draw(rng) / 1000))
        found.append(turns)
    return found


def capacity(all_turns: Sequence[Sequence[Turn]]) -> float:
    """Return the programs per second at which their contexts fill the memory."""
    areas = []
    for turns in all_turns:
        tokens, area = 0, 0.0
        for turn in turns:
            context = tokens + len(turn.added)
            prefill = Features(len(turn.added), 1, 1, 0, len(turn.added) * context)
            decode = Features(1, 1, 1, context, 0.0)
            alone = Steps().seconds(prefill) + turn.answer * Steps().seconds(decode)
            area += (turn.gap if tokens else 0.0) * tokens + alone * context
            tokens = context + turn.answer
        areas.append(area / BLOCK)
    return BLOCKS / fmean(areas)


def plain_requests(seed: int, until: float) -> list[Job]:
    """Return requests without a program, until a time."""
    rng, now, found = random.Random(f"plain {seed}"), 0.0, list[Job]()
    while (now := now + rng.expovariate(1 / PLAIN_GAP_S)) < until:
        prompt = tuple(rng.randrange(30_000) for _ in range(PLAIN_PROMPT.draw(rng)))
        found.append(Job(f"plain {len(found)}", now, [Turn(prompt, PLAIN_ANSWER.draw(rng), 0.0)], is_program=False))
    return found


def arrivals(seed: int, rate: float) -> list[float]:
    rng, now, times = random.Random(f"arrivals {seed}"), 0.0, []
    for _ in range(PROGRAMS):
        now += rng.expovariate(rate)
        times.append(now)
    return times


def serve(jobs: Sequence[Job], rule: Rule, blocks: int) -> Outcome:
    memory = Capacity(blocks, BLOCK, ROWS, WINDOW + BLOCK, 32_000)
    scheduler = Scheduler(
        SchedulerConfig(
            memory,
            Chunked(BUDGET),
            rule.make(),
            token_budget=BUDGET,
            longest_chunk=BUDGET,
            session_eviction=rule.by_worth,
        )
    )
    clock = VirtualClock()
    return drive(EngineLoop(scheduler, SimulatedExecutor(memory, Steps()), clock), clock, jobs)


def drive(loop: EngineLoop, clock: Clock, jobs: Sequence[Job]) -> Outcome:
    """Have an engine serve jobs, each a closed loop, from now on."""
    start = clock.now()
    due = [(start + job.begins, number, job) for number, job in enumerate(jobs)]
    heapq.heapify(due)
    open_: dict[str, tuple[int, Job]] = {}
    jcts: list[float] = []
    plain: list[float] = []
    cached = tokens = 0
    while due or open_:
        while due and due[0][0] <= clock.now():
            at, number, job = heapq.heappop(due)
            job.tokens += job.turns[job.at].added
            loop.add(_request(job, at))
            open_[job.name] = number, job
        if loop.idle:
            clock.wait_until(due[0][0])
            continue
        outcome = loop.advance()
        for event in outcome if isinstance(outcome, list) else ():
            if not isinstance(event, FinishedEvent):
                continue
            number, job = open_.pop(event.request_id)
            cached, tokens = cached + event.timings.cached_tokens, tokens + len(job.tokens)
            job.tokens += [0] * job.turns[job.at].answer
            job.at += 1
            if job.at < len(job.turns):
                heapq.heappush(due, (clock.now() + job.turns[job.at].gap, number, job))
            else:
                (jcts if job.is_program else plain).append(clock.now() - start - job.begins)
    return Outcome(sorted(jcts), cached / tokens, clock.now() - start, sorted(plain))


def _request(job: Job, now: float) -> Request:
    return Request(
        request_id=job.name,
        prompt_token_ids=tuple(job.tokens),
        params=SamplingParams(temperature=0, max_tokens=job.turns[job.at].answer, ignore_eos=True),
        arrival=now,
        program=job.name if job.is_program else "",
    )


class Cell(NamedTuple):
    """One run. rule: an index of RULES; -1: the first one with memory for all contexts. mixed: beside plain ones."""

    seed: int
    load: float
    rule: int
    mixed: bool = False


def run(cell: Cell) -> Outcome:
    turns = jobs_of(cell.seed)
    begins = arrivals(cell.seed, cell.load * capacity(turns))
    jobs = [Job(f"p{number}", at, one) for number, (at, one) in enumerate(zip(begins, turns, strict=True))]
    if cell.mixed:
        jobs += plain_requests(cell.seed, begins[-1])
    outcome = serve(jobs, RULES[max(0, cell.rule)], 100 * BLOCKS if cell.rule < 0 else BLOCKS)
    log_line(f"{cell}: mean JCT {fmean(outcome.jcts):,.0f} s, {outcome.hits:.1%} cached")
    return outcome


def row(load: float, rule: int, seeds: Sequence[int], found: dict[Cell, Outcome]) -> list[str]:
    runs = [found[Cell(seed, load, rule)] for seed in seeds]
    first = [found[Cell(seed, load, 0)] for seed in seeds]
    means = [fmean(one.jcts) / fmean(base.jcts) - 1 for one, base in zip(runs, first, strict=True)]
    worst = [one.jcts[-1] / base.jcts[-1] - 1 for one, base in zip(runs, first, strict=True)]
    ratios = [f"{fmean(means):+.0%} ({min(means):+.0%} to {max(means):+.0%})", f"{max(worst):+.0%}"]
    return [
        f"{load:g}",
        "memory for all contexts" if rule < 0 else RULES[rule].name,
        spread((fmean(one.jcts) for one in runs), 0),
        *(f"{fmean(quantile(one.jcts, share) for one in runs):,.0f}" for share in (0.5, 0.99, 1.0)),
        *([""] * 2 if rule == 0 else ratios),
        f"{fmean(one.per_hour for one in runs):.1f}",
        f"{fmean(one.hits for one in runs):.1%}",
    ]


def mixed_row(load: float, rule: int, seeds: Sequence[int], found: dict[Cell, Outcome]) -> list[str]:
    runs = [found[Cell(seed, load, rule, mixed=True)] for seed in seeds]
    return [
        f"{load:g}",
        "memory for all contexts" if rule < 0 else RULES[rule].name,
        spread((fmean(one.jcts) for one in runs), 0),
        spread((fmean(one.plain) for one in runs), 2),
        *(f"{fmean(quantile(one.plain, share) for one in runs):,.1f}" for share in (0.5, 0.99)),
    ]


REAL_LOADS = {2.0: 40, 20.0: 160}  # programs by how many come in a second
REAL_GAP = 20.0  # tools are so many times as fast
REAL_BLOCKS, REAL_LEN = 400, 1024


def real_jobs(seed: int, rate: float, vocab_size: int) -> list[Job]:
    """Return jobs that fit the built-in model's context, with tools and arrivals that suit its steps."""
    rng, now, found = random.Random(f"real {seed}"), 0.0, list[Job]()
    for turns in jobs_of(seed, REAL_LOADS[rate]):
        now += rng.expovariate(rate)
        lengths = accumulate(len(turn.added) + turn.answer for turn in turns)
        kept = [turn for turn, length in zip(turns, lengths, strict=True) if length < REAL_LEN]
        real = [Turn(tuple(one % vocab_size for one in turn.added), turn.answer, turn.gap / REAL_GAP) for turn in kept]
        found.append(Job(f"p{len(found)}", now, real))
    return found


def real_table(rounds: int) -> str:
    """Serve jobs with the built-in model, with the first and the last rule in turns; return the table."""
    model = Model("built-in", REAL_BLOCKS, REAL_LEN, threads=1)
    rules: dict[str, tuple[str, EvictionChoice]] = {
        RULES[0].name: ("fcfs", "lru"),
        RULES[-1].name: ("program", "sessions"),
    }
    found: dict[tuple[float, str], list[Outcome]] = {(rate, name): [] for rate in REAL_LOADS for name in rules}
    for number, (rate, name) in product(range(rounds), found):
        policy, eviction = rules[name]
        settings = EngineSettings(
            max_num_seqs=16, num_blocks=REAL_BLOCKS, max_model_len=model.max_model_len, kv_eviction=eviction
        )
        loop = model.loop(settings, SchedulingSettings(policy=policy))
        found[rate, name].append(one := drive(loop, loop.clock, real_jobs(number, rate, model.vocab_size)))
        log_line(f"{rate:g}/s, {name}: mean JCT {fmean(one.jcts):.2f} s, {one.hits:.1%} cached")
    rows = [real_row(rate, name, runs, found[rate, RULES[0].name]) for (rate, name), runs in found.items()]
    return table(("programs a second", "order, eviction", "mean JCT, s", "beside the first", "longest", "cached"), rows)


def real_row(rate: float, name: str, runs: Sequence[Outcome], first: Sequence[Outcome]) -> list[str]:
    ratios = [fmean(one.jcts) / fmean(base.jcts) - 1 for one, base in zip(runs, first, strict=True)]
    longest = [one.jcts[-1] / base.jcts[-1] - 1 for one, base in zip(runs, first, strict=True)]
    return [
        f"{rate:g}",
        name,
        spread((fmean(one.jcts) for one in runs), 1),
        spread((100 * one for one in ratios), 0, " %"),
        spread((100 * one for one in longest), 0, " %"),
        f"{fmean(one.hits for one in runs):.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seeds", type=int, default=5, help="so many (default 5)")
    parser.add_argument("--loads", type=float, nargs="*", default=LOADS, help="of capacity (default 0.5 1 1.2)")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    parser.add_argument("--real", type=int, metavar="ROUNDS", help="so many rounds with the built-in model instead")
    arguments = parser.parse_args()
    if arguments.real:
        body = (
            f"{' or '.join(map(str, REAL_LOADS.values()))} programs a round, on the built-in model (one thread, "
            f"contexts of up to {REAL_LEN:,} tokens); KV memory of {REAL_BLOCKS} blocks of 16 tokens, tools "
            f"{REAL_GAP:g} times as fast. A round has the same programs under both. The longest program is one whose "
            "tools take longest."
            "\n\n"
        )
        title = "Programs of agents on a real engine"
        publish("programs", title, body + real_table(arguments.real), arguments.write, "real")
        return
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    rules = (*range(len(RULES)), -1)
    cells = [Cell(seed, load, rule) for seed in seeds for load in arguments.loads for rule in rules]
    cells += [Cell(seed, load, rule, mixed=True) for seed in seeds for load in PLAIN_LOADS for rule in MIXED_RULES]
    with get_context("spawn").Pool(arguments.processes) as pool:
        found = dict(zip(cells, pool.map(run, cells, chunksize=1), strict=True))
    rates = [3600 * capacity(jobs_of(seed)) for seed in seeds]
    rows = [row(load, rule, seeds, found) for load in arguments.loads for rule in rules]
    heads = [
        *("load", "order, eviction", "mean JCT, s", "p50", "p99", "longest", "mean beside `fcfs`, LRU"),
        *("longest, worst seed", "programs/h", "cached"),
    ]
    body = (
        f"{PROGRAMS} programs a run; capacity is {spread(rates, 1)} programs an hour; seeds {seeds[0]} to {seeds[-1]}. "
        "p50, p99 and longest are means over seeds, ratios are within a seed. The longest job's ratio is that of the "
        "worst seed.\n\n" + table(heads, rows)
    )
    mixed = [mixed_row(load, rule, seeds, found) for load in PLAIN_LOADS for rule in MIXED_RULES]
    beside = ("load", "order, eviction", "mean JCT, s", "plain requests: mean E2E, s", "p50", "p99")
    body += f"\n\nBeside plain requests, one in {PLAIN_GAP_S:g} s:\n\n" + table(beside, mixed)
    publish("programs", "Programs of agents: job completion times", body, arguments.write)


if __name__ == "__main__":
    main()
