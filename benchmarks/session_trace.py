"""Conversations of a published trace: how much of their prompts is cached, by what is evicted first.

    python -m benchmarks.session_trace FILE [--write]

FILE: a trace that names blocks by hashes, as Mooncake's (FAST'25, in its repository under FAST25-release/traces). The
engine's own block pool and orders of eviction, without steps: a request takes no time, its answer is not kept (the
trace has its length alone), and blocks are those of the trace. A prompt that goes on with an earlier one is its
conversation's next turn. Memory is counted in what the conversations that will go on hold together, on average.

- LRU: least recently released first.
- Tail-optimised LRU (arXiv 2510.15152): first the ends of texts whose loss leaves the next prompt's cost within a
  bound, here of TAIL_BLOCKS blocks; it gives hits for a lower tail, so that the 95th percentile of the blocks that a
  prompt computes stands beside.
- By classes (arXiv 2506.02634): reuse is exponential, by a conversation's number of turns.
- By value: the engine's `--kv-eviction sessions`.
- Next use known: Belady's rule by block, where a prompt's blocks stay until it is computed. A parent is used whenever
  its child is, so that the rule keeps whole prefixes. It is exact for blocks that are loaded one at a time (a prompt's
  come at once, so that it is a bound to within one prompt), and for hits as the aim, not for seconds.

A second table has a tenant that floods the cache beside the trace: behind each of its prompts comes one of 24 blocks
that never returns, or one of 60 texts that return again and again, which hold three quarters of the memory.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from inflight.core.kv.block_pool import BlockPool, EvictionOrder
from inflight.core.kv.reuse import NUM_BUCKETS, ReuseModel, Trait, bucket_start
from inflight.core.kv.session_eviction import SessionEviction
from inflight.core.kv.sessions import Session, SessionTable
from inflight.metrics.definitions import quantile
from inflight.workload.traces import load

SHARES = (1 / 6, 1 / 4, 1 / 2)
NEVER, HELD = 2**62, -1  # next uses
TAIL_BLOCKS = 8  # of 512 tokens: what a prompt may compute without being late
FLOOD_BLOCKS, FLOOD_TEXTS = 24, 60


@dataclass(frozen=True, slots=True)
class Turn:
    """ids: of the full blocks of its prompt. talk: a number of its conversation. answer: tokens. tenant: not the
    trace's where it is of a flood."""

    at: float
    ids: tuple[int, ...]
    talk: int
    answer: int = 0
    tenant: str = ""


class TailOptimised(EvictionOrder):
    """Least recently released first, but before all others the last TAIL_BLOCKS blocks of each conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._ends = EvictionOrder()
        self._turns: dict[object, tuple[int, int]] = {}  # of a session: its turn, and how many blocks it has released

    def __len__(self) -> int:
        return len(self._blocks) + len(self._ends)

    def add(self, block: int, owner: object) -> None:
        assert isinstance(owner, Session)
        turn, count = self._turns.get(owner, (0, 0))
        count = count + 1 if turn == owner.turns else 1
        self._turns[owner] = owner.turns, count
        if count <= TAIL_BLOCKS:
            self._ends.add(block, owner)
        else:
            super().add(block, owner)

    def discard(self, block: int) -> None:
        self._ends.discard(block)
        super().discard(block)

    def pop(self) -> int:
        return self._ends.pop() if len(self._ends) else super().pop()


class ExponentialClasses(ReuseModel):
    """Some conversations of a class (turns, and what they wait for) return, after exponential times; the others never
    do. The chance that one does falls with the time that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: defaultdict[Trait, float] = defaultdict(lambda: 2.0)
        self._returned: defaultdict[Trait, float] = defaultdict(lambda: 1.0)
        self._seconds: defaultdict[Trait, float] = defaultdict(lambda: 60.0)

    def observe(self, traits: Sequence[Trait], index: int, came: bool) -> None:
        self._begun[traits[0]] += index == 0
        if came:
            self._returned[traits[0]] += 1
            self._seconds[traits[0]] += (bucket_start(index) + bucket_start(index + 1)) / 2

    def rates(self, traits: Sequence[Trait]) -> tuple[float, ...]:
        share = min(0.99, self._returned[traits[0]] / self._begun[traits[0]])
        rate = self._returned[traits[0]] / self._seconds[traits[0]]
        still = [share * math.exp(-rate * bucket_start(index)) for index in range(NUM_BUCKETS)]
        return tuple(rate * one / (one + 1 - share) for one in still)


Order = Callable[[SessionTable], EvictionOrder | None]
ORDERS: dict[str, tuple[Order, type[ReuseModel]]] = {
    "LRU": (lambda table: None, ReuseModel),
    "tail-optimised LRU": (lambda table: TailOptimised(), ReuseModel),
    "by classes": (SessionEviction, ExponentialClasses),
    "by value": (SessionEviction, ReuseModel),
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Blocks of the trace's own prompts. computed_p95: of one prompt."""

    hits: float
    computed_p95: float


def turns_of(path: Path) -> list[Turn]:
    turns: list[Turn] = []
    last: dict[int, int] = {}  # conversations by the blocks that they had last
    for number, entry in enumerate(load(path).entries):
        ids = entry.prefix[: entry.prompt_tokens // max(1, entry.block_size)]
        own = ids[1:]  # the first one is shared by all
        talk = next((last[one] for one in reversed(own) if one in last), number)
        last.update(dict.fromkeys(own, talk))
        turns.append(Turn(entry.arrival, ids, talk, entry.output_tokens))
    return turns


def working_set(turns: Sequence[Turn]) -> int:
    before: dict[int, Turn] = {}
    area = 0.0
    for turn in turns:
        earlier = before.get(turn.talk)
        area += 0.0 if earlier is None else len(earlier.ids) * (turn.at - earlier.at)
        before[turn.talk] = turn
    return int(area / (turns[-1].at - turns[0].at))


def replayed(turns: Sequence[Turn], blocks: int, order_of: str) -> Replayed:
    make_order, model = ORDERS[order_of]
    sessions = SessionTable(model=model())
    block_of: dict[int, int] = {}
    id_of: dict[int, int] = {}

    def evicted(block: int) -> None:
        one = id_of.pop(block)
        if block_of.get(one) == block:  # not content behind an evicted beginning, which was computed again
            del block_of[one]

    order = make_order(sessions)
    pool, hits, computed = BlockPool(blocks, evicted, id_of.keys(), order), 0, list[int]()
    for turn in turns:
        if len(turn.ids) > blocks:
            continue  # refused
        sessions.now = turn.at
        session = sessions.named((turn.tenant, turn.talk), turn.tenant)
        found = [block_of[one] for one in _leading(turn.ids, block_of)]
        if isinstance(order, SessionEviction):
            order.leave(session, found)
        sessions.begin_turn(session)
        if not turn.tenant:
            hits += len(found)
            computed.append(len(turn.ids) - len(found))
        for block in found:
            pool.acquire(block)
        new = pool.allocate(len(turn.ids) - len(found))
        for one, block in zip(turn.ids[len(found) :], new, strict=True):
            block_of[one], id_of[block] = block, one
        sessions.end_turn(session, len(turn.ids), num_answered=turn.answer)
        pool.release(reversed([*found, *new]), session)
    whole = sum(len(turn.ids) for turn in turns if not turn.tenant)
    return Replayed(hits / whole, quantile(sorted(computed), 0.95))


def _leading(ids: Sequence[int], cached: dict[int, int]) -> list[int]:
    length = next((at for at, one in enumerate(ids) if one not in cached), len(ids))
    return list(ids[:length])


def known(turns: Sequence[Turn], blocks: int) -> float:
    """Share of blocks that are cached where what is needed last goes first, ends of prompts before beginnings."""
    next_use: list[list[int]] = [[] for _ in turns]
    seen: dict[int, int] = {}
    for number in reversed(range(len(turns))):
        next_use[number] = [seen.get(one, NEVER) for one in turns[number].ids]
        seen.update(dict.fromkeys(turns[number].ids, number))
    cached: dict[int, int] = {}  # id → its next use
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for number, turn in enumerate(turns):
        if len(turn.ids) > blocks:
            continue
        hits += len(_leading(turn.ids, cached))
        cached.update(dict.fromkeys(turn.ids, HELD))
        while len(cached) > blocks:
            then, _, one = heapq.heappop(heap)
            if cached.get(one) == -then:
                del cached[one]
        for depth, (one, then) in enumerate(zip(turn.ids, next_use[number], strict=True)):
            cached[one] = then
            heapq.heappush(heap, (-then, -depth, one))
    return hits / sum(len(turn.ids) for turn in turns)


def flooded(turns: Sequence[Turn], again: bool) -> list[Turn]:
    """Each turn, and behind it one of another tenant: of a text that never comes again, or of one of FLOOD_TEXTS."""
    found: list[Turn] = []
    for number, turn in enumerate(turns):
        text = -1 - (number % FLOOD_TEXTS if again else number)
        ids = tuple(range(text * FLOOD_BLOCKS, (text + 1) * FLOOD_BLOCKS))
        found += [turn, Turn(turn.at, ids, text, 16, "flood")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    turns = turns_of(arguments.file)
    whole, rows = working_set(turns), []
    for share in SHARES:
        blocks = int(whole * share)
        memory = f"{share:.1%} ({blocks:,} blocks)"
        most = known(turns, blocks)
        by_order = {name: replayed(turns, blocks, name) for name in ORDERS}
        lru = by_order["LRU"].hits
        for name, one in by_order.items():
            log_line(f"{memory}: {name} {one.hits:.4f}, known {most:.4f}")
            gained = "" if name == "LRU" else f"{(one.hits - lru) / (most - lru):.0%}"
            rows.append([memory, name, f"{one.hits:.1%}", f"{one.hits / lru:.2f} ×", gained, f"{one.computed_p95:.0f}"])
        rows.append([memory, "next use known", f"{most:.1%}", f"{most / lru:.2f} ×", "100%", ""])
    heads = ["memory", "evicted first", "hits", "of LRU's", "of what knowing gains", "blocks computed, p95"]
    talks = len({turn.talk for turn in turns})
    every = replayed(turns, 2**20, "LRU").hits
    body = f"{len(turns):,} requests of {talks:,} conversations; {every:.1%} with all memory.\n\n" + table(heads, rows)
    body += "\n\nWith another tenant's prompts in between, in a quarter of the memory:\n\n" + table(
        ["evicted first", "alone", "beside texts that never return", "beside texts that return again and again"],
        [[name, *beside_floods(turns, whole // 4, name)] for name in ("LRU", "by value")],
    )
    variant = "" if "conversation" in arguments.file.name else arguments.file.name.split("_")[1]
    title = "Conversations of a published trace" + (f": {variant}" if variant else "")
    publish("session_trace", title, body, arguments.write, variant)


def beside_floods(turns: Sequence[Turn], blocks: int, order_of: str) -> list[str]:
    traces = (turns, flooded(turns, again=False), flooded(turns, again=True))
    return [f"{replayed(one, blocks, order_of).hits:.1%}" for one in traces]


if __name__ == "__main__":
    main()
