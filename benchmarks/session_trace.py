"""Conversations of a published trace: how much of their prompts is cached, by what is evicted first.

    python -m benchmarks.session_trace FILE [--write]

FILE: a trace that names blocks by hashes, as Mooncake's (FAST'25, `conversation_trace.jsonl`, in its repository under
FAST25-release/traces). The engine's own block pool and orders of eviction, without steps: a request takes no time, its
answer is not kept (the trace does not have it), and blocks are those of the trace. A prompt that goes on with an
earlier one is its conversation's next turn. `known` is Belady's rule, by block. Memory is counted in what the
conversations that will go on hold together, on average.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import log_line, publish
from benchmarks.results import table
from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.session_eviction import SessionEviction
from inflight.core.kv.sessions import SessionTable
from inflight.workload.traces import load

SHARES = (1 / 6, 1 / 4, 1 / 2)
NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Turn:
    """ids: of the full blocks of its prompt. talk: a number of its conversation."""

    at: float
    ids: tuple[int, ...]
    talk: int


def turns_of(path: Path) -> list[Turn]:
    turns: list[Turn] = []
    last: dict[int, int] = {}  # conversations by the blocks that they had last
    for number, entry in enumerate(load(path).entries):
        ids = entry.prefix[: entry.prompt_tokens // max(1, entry.block_size)]
        own = ids[1:]  # the first one is shared by all
        talk = next((last[one] for one in reversed(own) if one in last), number)
        last.update(dict.fromkeys(own, talk))
        turns.append(Turn(entry.arrival, ids, talk))
    return turns


def working_set(turns: Sequence[Turn]) -> int:
    before: dict[int, Turn] = {}
    area = 0.0
    for turn in turns:
        earlier = before.get(turn.talk)
        area += 0.0 if earlier is None else len(earlier.ids) * (turn.at - earlier.at)
        before[turn.talk] = turn
    return int(area / (turns[-1].at - turns[0].at))


def replayed(turns: Sequence[Turn], blocks: int, by_worth: bool) -> float:
    """Share of the blocks that were cached."""
    sessions = SessionTable()
    block_of: dict[int, int] = {}
    id_of: dict[int, int] = {}

    def evicted(block: int) -> None:
        del block_of[id_of.pop(block)]

    order = SessionEviction(sessions) if by_worth else None
    pool, hits = BlockPool(blocks, evicted, id_of.__contains__, order), 0
    for turn in turns:
        if len(turn.ids) > blocks:
            continue  # refused
        sessions.now = turn.at
        session = sessions.named(turn.talk, "")
        sessions.begin_turn(session)
        found = [block_of[one] for one in _leading(turn.ids, block_of)]
        hits += len(found)
        for block in found:
            pool.acquire(block)
        new = pool.allocate(len(turn.ids) - len(found))
        for one, block in zip(turn.ids[len(found) :], new, strict=True):
            block_of[one], id_of[block] = block, one
        sessions.end_turn(session, len(turn.ids))
        pool.release(reversed([*found, *new]), session)
    return hits / sum(len(turn.ids) for turn in turns)


def _leading(ids: Sequence[int], cached: dict[int, int]) -> list[int]:
    length = next((at for at, one in enumerate(ids) if one not in cached), len(ids))
    return list(ids[:length])


def known(turns: Sequence[Turn], blocks: int) -> float:
    """The same where what is needed last goes first, ends of prompts before their beginnings."""
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
        for depth, (one, then) in enumerate(zip(turn.ids, next_use[number], strict=True)):
            cached[one] = then
            heapq.heappush(heap, (-then, -depth, one))
        while len(cached) > blocks:
            then, _, one = heapq.heappop(heap)
            if cached.get(one) == -then:
                del cached[one]
    return hits / sum(len(turn.ids) for turn in turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    turns = turns_of(arguments.file)
    whole, rows = working_set(turns), []
    for share in SHARES:
        blocks = int(whole * share)
        lru, worth, most = replayed(turns, blocks, False), replayed(turns, blocks, True), known(turns, blocks)
        log_line(f"{share:g} of {whole}: LRU {lru:.4f}, by worth {worth:.4f}, known {most:.4f}")
        gained = f"{(worth - lru) / (most - lru):.0%}"
        ratios = (f"{worth / lru:.2f} ×", f"{most / lru:.2f} ×", gained)
        rows.append([f"{share:.1%} ({blocks:,} blocks)", f"{lru:.1%}", f"{worth:.1%}", f"{most:.1%}", *ratios])
    heads = ["memory", "hits, LRU", "by worth", "next use known", "worth / LRU", "known / LRU", "of what knowing gains"]
    talks = len({turn.talk for turn in turns})
    body = (
        f"{len(turns):,} requests of {talks:,} conversations; {replayed(turns, 2**20, False):.1%} with all memory.\n\n"
    )
    publish("session_trace", "Conversations of a published trace", body + table(heads, rows), arguments.write)


if __name__ == "__main__":
    main()
