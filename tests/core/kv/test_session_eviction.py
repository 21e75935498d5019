"""Eviction by the value of sessions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.session_eviction import ACTIVE_S, SHARED_LIMIT, SessionEviction, SessionMatcher
from inflight.core.kv.sessions import Awaits, Session, SessionTable
from inflight.core.types.events import Finish

from .. import inspect_scheduler as inside
from ..builders import request, sequence
from ..harness import Harness, Setup

A = (0, 1, 1, 0, 1, 0, 0, 1, 1)


class Kept:
    """A pool with cached blocks of sessions."""

    def __init__(self, blocks: int = 8, block_seconds: Callable[[int], float] = lambda tokens: 1.0):
        self.table = SessionTable(block_seconds)
        self.order = SessionEviction(self.table)
        self.evicted: list[int] = []
        self.pool = BlockPool(blocks, self.evicted.append, range(blocks), self.order)

    def turn(self, name: str, count: int, at: float, tenant: str = "", awaits: Awaits = "") -> tuple[int, ...]:
        """Run a turn of a session, which allocates so many blocks and releases them."""
        session = turn_of(self.table, name, at, count * 16, awaits, tenant)
        blocks = self.pool.allocate(count)
        self.pool.release(reversed(blocks), session)
        return blocks


def turn_of(
    table: SessionTable, name: str, at: float, tokens: int = 16, awaits: Awaits = "", tenant: str = ""
) -> Session:
    """Begin and end a turn of a session."""
    session, table.now = table.named(name, tenant), at
    table.begin_turn(session)
    table.end_turn(session, tokens, awaits)
    return session


def learn(table: SessionTable, gap: float, awaits: Awaits = "") -> None:
    """Have sessions of one turn come back after this gap."""
    for number in range(60):
        name = f"learnt {awaits} {number}"
        turn_of(table, name, 0.0, awaits=awaits)
        table.now = gap
        table.begin_turn(table.named(name, ""))
        table.named(name, "").running = 0


@pytest.mark.parametrize("awaits", [("", ""), ("person", "tool")])
def test_the_session_that_has_rested_far_longest_for_what_it_waits_for_is_evicted_first(awaits: Any) -> None:
    kept = Kept(4)
    learn(kept.table, gap=4.0, awaits=awaits[1])
    if awaits[0]:
        learn(kept.table, gap=120.0, awaits=awaits[0])
    left = kept.turn("left", 2, at=1002.0 if awaits[0] else 100.0, awaits=awaits[0])
    back = kept.turn("back", 2, at=1000.0, awaits=awaits[1])
    kept.table.now = 1003.0
    assert list(kept.order.coming()) == [left[1], left[0], back[1], back[0]], "ends before roots"
    kept.pool.allocate(2)
    assert kept.evicted == [left[1], left[0]]


def test_coming_blocks_are_evicted_and_few_sessions_are_valued_at_each_look_up(monkeypatch: Any) -> None:
    kept = Kept(400)
    for number in range(100):
        kept.turn(f"s{number}", 1 + number % 4, at=number / 10, tenant=f"t{number % 3}")
    kept.table.now = 20.0
    kept.table.advance()
    asked, value = [], SessionTable.block_value
    monkeypatch.setattr(SessionTable, "block_value", lambda self, one: asked.append(one) or value(self, one))
    for _ in range(50):
        coming = kept.pool.next_evicted(kept.pool.free + 3, ())
        kept.pool.allocate(kept.pool.free + 3)
        assert len(coming) == 3 and kept.evicted[-3:] == coming
        kept.table.now += 0.001
    assert len(asked) <= 32, "of few sessions has the rest come to its next bucket of ages within 0.05 s"


def test_a_turn_without_blocks_ends_the_high_value_of_earlier_ones() -> None:
    kept = Kept(4, block_seconds=lambda tokens: 1 / tokens)
    back = kept.turn("back", 2, at=100.0)
    resting = kept.turn("resting", 2, at=101.0)
    session = kept.table.named("back", "")
    kept.table.begin_turn(session)
    assert list(kept.order.coming()) == [*reversed(resting), *reversed(back)], "it is computing"
    kept.table.end_turn(session, 10_000)
    coming = kept.pool.next_evicted(4, ())
    assert coming == [*reversed(back), *reversed(resting)]
    kept.pool.allocate(4)
    assert kept.evicted == coming


def test_shared_blocks_are_evicted_last() -> None:
    kept = Kept(4)
    (shared, mine) = kept.turn("a", 2, at=0.0)
    kept.pool.acquire(shared)
    kept.pool.release([shared], kept.table.named("b", ""))
    kept.turn("c", 2, at=1.0)
    assert list(kept.order)[-1] == shared and mine in list(kept.order)[:-1]


def test_a_tenant_above_its_share_is_evicted_first() -> None:
    kept = Kept(8)
    large = kept.turn("large", 6, at=5.0, tenant="a")
    kept.turn("small", 2, at=5.0, tenant="b")
    assert list(kept.order)[:6] == list(reversed(large))


def test_evicted_content_has_no_owner() -> None:
    kept = Kept(2)
    for at, name in enumerate("ab"):
        kept.turn(name, 2, at=float(at))
    assert all(kept.order.owner(block) is kept.table.named("b", "") for block in kept.order)
    assert len(kept.order) == 2 == kept.pool.evictable


def test_the_first_session_owns_a_block_and_a_release_without_owner_changes_nothing() -> None:
    kept = Kept(3)
    (mine, brought) = kept.pool.allocate(2)
    session = kept.table.named("a", "")
    kept.pool.release([mine], session)
    kept.pool.release([brought])
    assert (kept.order.owner(mine), kept.order.owner(brought)) == (session, None)
    for owner in (None, session):  # as a transfer's end gives it up, and then a sequence
        for block in (mine, brought):
            kept.pool.acquire(block)
        kept.pool.release([brought, mine], owner)
    assert kept.order.owner(mine) is kept.order.owner(brought) is session
    assert list(kept.order) == [brought, mine] and set(kept.order.idle_blocks(session)) == {brought, mine}


def test_the_order_is_that_of_the_values_whatever_happens() -> None:
    """`coming` against a plain sort, and against the blocks that are then evicted one by one."""
    rng = random.Random(7)
    kept = Kept(60)
    for number in range(400):
        at = kept.table.now + rng.expovariate(0.2)
        kept.turn(f"s{rng.randrange(25)}", rng.randrange(1, 8), at, awaits=rng.choice(("tool", "person", "")))
        if number % 10:
            continue
        coming = list(kept.order.coming())
        owners = [kept.order.owner(block) for block in coming]
        values = [kept.table.block_value(one) for one in owners if isinstance(one, Session)]
        assert values and values == sorted(values)
        count = rng.randrange(1, 30)
        kept.evicted.clear()
        wanted = coming[: max(0, count - kept.pool.free)]
        kept.pool.release(kept.pool.allocate(count))
        assert kept.evicted == wanted


def test_evicted_blocks_are_those_that_were_coming_under_several_tenants_and_shared_blocks() -> None:
    rng = random.Random(3)
    kept = Kept(80)
    for _ in range(300):
        at = kept.table.now + rng.expovariate(0.02)
        tenant = f"t{min(rng.randrange(5), rng.randrange(5))}"
        blocks = kept.turn(f"{tenant} {rng.randrange(6)}", rng.randrange(1, 9), at, tenant)
        if rng.random() < 0.3:  # another session had the first ones, too
            for block in blocks[:2]:
                kept.pool.acquire(block)
            kept.pool.release(blocks[:2], kept.table.named(f"other {tenant}", tenant))
        coming = list(kept.order.coming())
        assert len(coming) == len(set(coming)) == len(kept.order)
        kept.evicted.clear()
        free = kept.pool.free
        kept.pool.release(kept.pool.allocate(40))
        assert kept.evicted == coming[: 40 - free]


def light_beside(kept: Kept, name: Callable[[int], str]) -> int:
    """Two sessions of a tenant of 4 blocks each in turns of a minute, beside one that sends four turns of 10 blocks a
    second under these names; return how many blocks of the light one were found in the last 10 turns."""
    found, mine, flood = 0, dict[str, tuple[int, ...]](), 0
    for number in range(30):
        light = f"light {number % 2}"
        cached = [block for block in mine.get(light, ()) if kept.order.owner(block) is kept.table.named(light, "b")]
        found += len(cached) if number >= 20 else 0
        for block in cached:
            kept.pool.acquire(block)
        session = kept.table.named(light, "b")
        kept.table.now = at = number * 60.0
        mine[light] = (*cached, *kept.pool.allocate(4 - len(cached)))
        kept.table.begin_turn(session)
        kept.table.end_turn(session, 64)
        kept.pool.release(reversed(mine[light]), session)
        for _ in range(240):
            flood += 1
            at += 0.25
            kept.turn(name(flood), 10, at, tenant="a")
    return found


@pytest.mark.parametrize("name", [lambda number: f"new {number}", lambda number: f"again {number % 3}"])
def test_a_tenant_keeps_its_blocks_beside_a_flood_and_beside_one_that_touches_its_own_again(name: Any) -> None:
    assert light_beside(Kept(60), name) == 40, "8 of 60 blocks are less than half of an equal share"


def test_shared_blocks_that_are_many_or_old_are_evicted_first() -> None:
    kept = Kept(12)
    twice = kept.turn("a", 8, at=0.0)
    for block in twice:
        kept.pool.acquire(block)
    kept.pool.release(twice, kept.table.named("b", ""))
    mine = kept.turn("c", 4, at=1.0)
    excess = round(8 - SHARED_LIMIT / (1 - SHARED_LIMIT) * 4)
    assert list(kept.order)[:excess] == list(twice)[:excess] and list(kept.order)[excess] in mine
    kept.table.now = 2.0 + ACTIVE_S
    assert list(kept.order.coming())[:8] == list(twice)


def test_a_branch_that_a_session_has_left_is_evicted_first() -> None:
    kept = Kept(12)
    other, mine = kept.turn("other", 4, at=0.0), kept.turn("mine", 8, at=0.0)
    session = kept.table.named("mine", "")
    kept.order.leave(session, mine[:2])
    assert set(kept.order.idle_blocks(session)) == set(mine), "it has begun something else"
    kept.order.leave(session, mine[:5])
    assert set(list(kept.order)[:3]) == set(mine[5:])
    assert set(kept.order.idle_blocks(session)) == set(mine[:5]) and len(kept.order) == 12
    assert set(list(kept.order)[3:]) == {*other, *mine[:5]}


# -- which requests are turns of which session ------------------------------------------------------------------

ROOMY = Setup(num_blocks=40, token_budget=40, max_model_len=40, session_eviction=True)
HOST = Setup(num_blocks=6, token_budget=20, host_blocks=4, host_is_tier=True, session_eviction=True)


def turn(harness: Harness, prompt: tuple[int, ...], output: int = 2, **params: Any) -> tuple[Session, tuple[int, ...]]:
    """Serve a request; return its session, and the text with its answer."""
    name = f"{len(harness.clients)}"
    harness.add(request(name, prompt, output=output, **params))
    while not (of := inside.samples(harness.scheduler, name)[0].session):
        harness.step()
    harness.drain()
    return of, (*prompt, *harness.clients[-1].tokens[0])


def test_a_request_that_continues_all_cached_text_of_a_session_is_its_next_turn() -> None:
    harness = Harness(ROOMY)
    first, text = turn(harness, A)
    assert turn(harness, (*text, 0, 0, 0, 1))[0] is first and first.turns == 2, "it goes on with the same text"
    assert turn(harness, (*A[:4], 1, 1, 1, 1, 1))[0] is not first, "of what there is it has the beginning alone"
    assert turn(harness, (*text, 1))[0] is not first, "it is shorter than what the session has come to"


def test_a_next_turn_need_not_repeat_the_answer() -> None:
    """Templates leave out the reasoning."""
    harness = Harness(ROOMY)
    first, text = turn(harness, A, output=8)
    assert turn(harness, (*A[:4], 1, 1, 1, 1, 1, 1))[0] is not first, "it has left out more than the answer"
    assert turn(harness, (*A, (text[len(A)] + 1) % 8, 0, 1))[0] is first


def test_a_request_that_continues_text_on_the_host_is_its_sessions_next_turn() -> None:
    harness = Harness(replace(HOST, num_blocks=8, host_blocks=20))
    first, text = turn(harness, A)
    turn(harness, (1, 1, 0, 0, 0, 1, 1, 1, 0))
    turn(harness, (0,) * 9)
    assert inside.evictable_host_blocks(harness.scheduler) > 0 and first.turns == 1
    assert turn(harness, (*text, 0, 1))[0] is first and harness.timings(-1).cached_tokens == 10


def test_session_names_are_within_a_tenant_and_a_salt() -> None:
    harness = Harness(ROOMY)
    kinds = ({}, {}, {"tenant": "b"}, {"cache_salt": "salt"})
    found = [turn(harness, A, session="same", **kind)[0] for kind in kinds]
    assert found[0] is found[1] and len({id(one) for one in found}) == 3


def test_recovery_ends_all_turns() -> None:
    scheduler, found = ROOMY.scheduler(), []
    for name in ("broken off", "again"):
        scheduler.recover("broken", 0.0)
        scheduler.add(request(name, A, output=2, session="same"), 0.0)
        scheduler.plan(0.0)
        found.append(inside.samples(scheduler, name)[0].session)
    assert [one.running for one in found] == [1, 1] and found[0] is not found[1]


@pytest.mark.parametrize(
    ("marks", "output", "reason", "awaits"),
    [
        (((1,),), (0, 1, 0), "stop", "tool"),
        (((0, 1, 1), (1, 0, 1)), (0, 1, 0, 1), "stop", "tool"),
        (((1, 1),), (1, 0, 1), "stop", "person"),
        ((), (1, 1), "stop", ""),
        (((1,),), (), "abort", ""),
    ],
)
def test_an_answer_says_what_its_session_waits_for(
    marks: tuple[tuple[int, ...], ...], output: tuple[int, ...], reason: Any, awaits: str
) -> None:
    table, one = SessionTable(), sequence(call_marks=marks)
    matcher = SessionMatcher(table, SessionEviction(table), SessionEviction(table), 2)
    matcher.admit(one, [])
    one.output[:], one.finish = output, Finish(reason)
    matcher.end(one)
    assert one.session.awaits == awaits


def test_some_sessions_in_steady_turns_stay_on_the_host() -> None:
    """Six of five blocks take turns, and there is room for three and a half in both memories together."""

    def hits(by_worth: bool) -> int:
        harness = Harness(replace(HOST, host_blocks=12, session_eviction=by_worth))
        asked = [request(f"{at}", A, 2, session=f"s{at % 6}", cache_salt=f"{at % 6}") for at in range(120)]
        return sum(harness.serve(one)[0] for one in asked)

    assert hits(by_worth=False) == 0
    assert hits(by_worth=True) > 0.2 * 20 * 6 * 8


# -- when they come back ----------------------------------------------------------------------------------------


def test_gaps_are_watched_after_their_session_lost_its_blocks() -> None:
    """One in eight of the sessions that rest for ten minutes comes back: the gaps of the others count, too."""
    table = SessionTable()
    for number in range(200):
        turn_of(table, f"{number}", 100.0 * number)
        if number >= 8 and not number % 8:
            turn_of(table, f"{number - 8}", 100.0 * number + 1.0)
    resting = Session("")
    table.begin_turn(resting)
    table.end_turn(resting, 16)
    table.now += 700.0
    table.advance()
    late = table.block_value(resting)
    table.now = 1e6
    assert late < 0.5 / 300, "an even chance within five minutes would be that"


def test_an_idle_hour_of_many_sessions_is_counted_in_bounded_parts() -> None:
    table = SessionTable()
    ends: list[list[int]] = []  # buckets of all sessions after each call
    for number in range(200):
        turn_of(table, f"{number}", float(number))
    table.now = 7200.0
    while len(ends) < 2 or ends[-1] != ends[-2]:
        table.advance()
        ends.append([session.bucket for session in table._watch.latest()])
    assert len(ends) > 2, "one call does not count them all"
    assert len(set(ends[-1])) == 1 < ends[-1][0], "in the end all have come as far"


def test_gaps_of_unrecognisable_sessions_are_not_watched() -> None:
    table = SessionTable()
    left, named, there = Session(""), table.named("a", ""), Session("")
    for session in (left, named, there):
        table.begin_turn(session)
        table.end_turn(session, 16)
    there.num_idle_blocks = 1
    table.now = 60.0
    table.advance()
    assert len(table._watch) == 2 and left not in table._watch
