"""Eviction by the value of sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.session_eviction import RERANK_BATCH, SessionEviction, SessionMatcher
from inflight.core.kv.sessions import Awaits, ReuseGaps, Session, SessionTable, bucket
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
        self.pool = BlockPool(blocks, self.evicted.append, lambda block: True, self.order)

    def turn(self, name: str, count: int, at: float, tenant: str = "", awaits: Awaits = "") -> tuple[int, ...]:
        """Run a turn of a session, which allocates so many blocks and releases them."""
        self.table.now = at
        session = self.table.named(name, tenant)
        self.table.begin_turn(session)
        blocks = self.pool.allocate(count)
        self.table.end_turn(session, count * 16, awaits)
        self.pool.release(reversed(blocks), session)
        return blocks


def matcher_of_none() -> SessionMatcher:
    table = SessionTable()
    return SessionMatcher(table, SessionEviction(table), SessionEviction(table), 2)


def learn(table: SessionTable, gap: float, times: int = 60, awaits: Awaits = "") -> None:
    """Have sessions of one turn come back after this gap."""
    for number in range(times):
        session = table.named(f"learnt {awaits} {number}", "")
        table.now = 0.0
        table.begin_turn(session)
        table.end_turn(session, 16, awaits)
        table.now = gap
        table.begin_turn(session)
        session.running = 0


def test_the_session_that_has_rested_far_longest_is_evicted_first() -> None:
    kept = Kept(4)
    learn(kept.table, gap=4.0)
    left = kept.turn("left", 2, at=100.0)
    back = kept.turn("back", 2, at=1000.0)
    kept.table.now = 1003.0
    assert list(kept.order) == [left[1], left[0], back[1], back[0]], "ends before roots"
    kept.pool.allocate(2)
    assert kept.evicted == [left[1], left[0]]


def test_some_sessions_in_steady_turns_stay_whole_where_lru_would_lose_all() -> None:
    """Ten sessions of four blocks take turns, and there is room for five of them."""

    def hits(by_worth: bool) -> int:
        table = SessionTable()
        order = SessionEviction(table) if by_worth else None
        content: dict[int, tuple[str, int]] = {}
        pool = BlockPool(20, lambda block: content.pop(block, None) and None, content.__contains__, order)
        found = 0
        for turn in range(40):
            for at in range(10):
                name, table.now = f"s{at}", turn * 10.0 + at
                session = table.named(name, "")
                table.begin_turn(session)
                mine = {index: block for block, (owner, index) in content.items() if owner == name}
                whole = [mine[index] for index in range(4) if all(one in mine for one in range(index + 1))]
                found += len(whole)
                for block in whole:
                    pool.acquire(block)
                new = pool.allocate(4 - len(whole))
                content.update({block: (name, len(whole) + index) for index, block in enumerate(new)})
                table.end_turn(session, 64)
                pool.release(reversed([*whole, *new]), session)
        return found

    assert hits(by_worth=False) == 0
    assert hits(by_worth=True) > 0.25 * 40 * 10 * 4, "half of them would fit"


def test_coming_blocks_are_evicted_and_few_sessions_are_valued_at_each_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(400)
    for number in range(100):
        kept.turn(f"s{number}", 1 + number % 4, at=number / 10, tenant=f"t{number % 3}")
    kept.table.now = 20.0
    asked, value = [], SessionTable.block_value
    monkeypatch.setattr(SessionTable, "block_value", lambda self, one: asked.append(one) or value(self, one))
    for _ in range(50):
        coming = kept.pool.next_evicted(kept.pool.free + 3, ())
        assert len(coming) == 3
        kept.pool.allocate(kept.pool.free + 3)
        assert kept.evicted[-3:] == coming
        kept.table.now += 0.001
    assert len(asked) <= RERANK_BATCH, "they were looked at within 0.05 s"


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
    other = kept.table.named("b", "")
    kept.pool.release([shared], other)
    kept.turn("c", 2, at=1.0)
    assert list(kept.order)[-1] == shared and mine in list(kept.order)[:-1]


def test_a_tenant_above_its_share_is_evicted_first() -> None:
    kept = Kept(8)
    large = kept.turn("large", 6, at=5.0, tenant="a")
    kept.turn("small", 2, at=5.0, tenant="b")
    assert list(kept.order)[:6] == list(reversed(large))


def test_evicted_content_has_no_owner() -> None:
    kept = Kept(2)
    kept.turn("a", 2, at=0.0)
    kept.turn("b", 2, at=1.0)
    assert all(kept.order.owner(block) is kept.table.named("b", "") for block in kept.order)
    assert len(kept.order) == 2 == kept.pool.evictable


def test_open_gaps_are_learnt_from() -> None:
    gaps = ReuseGaps()
    for _ in range(100):
        gaps.end(2.0)
    soon = gaps.hit_rate(0.0)
    assert soon > 5 * gaps.hit_rate(60.0) and bucket(2.0) < bucket(60.0)
    for _ in range(400):
        for at in range(bucket(600.0)):
            gaps.outlast(at)
    assert gaps.hit_rate(0.0) < soon


def test_a_request_that_continues_all_cached_text_of_a_session_is_its_next_turn() -> None:
    harness = Harness(Setup(num_blocks=40, token_budget=40, max_model_len=40, session_eviction=True))
    sessions = []

    def serve(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Serve a text; return it with its answer."""
        harness.add(request(name, prompt, output=2))
        harness.step()
        sessions.append(inside.samples(harness.scheduler, name)[0].session)
        harness.drain()
        return (*prompt, *harness.clients[-1].tokens[0])

    text = serve("a", A)
    serve("a again", (*text, 0, 0, 0, 1))
    serve("b", (*A[:4], 1, 1, 1, 1, 1))
    serve("c", (*text, 1))
    first, again, branch, other = sessions
    assert again is first and first.turns == 2, "it goes on with the same text"
    assert branch is not first, "of what there is it has the beginning alone"
    assert other is not first, "it is shorter than what the session has come to"


def test_session_names_are_within_a_tenant_and_a_salt() -> None:
    harness = Harness(Setup(num_blocks=40, token_budget=40, session_eviction=True))
    found = []
    for at, (tenant, salt) in enumerate((("", ""), ("", ""), ("b", ""), ("", "salt"))):
        name = f"r{at}"
        harness.add(structs.replace(request(name, A, output=2, tenant=tenant, cache_salt=salt), session="same"))
        harness.step()
        found.append(inside.samples(harness.scheduler, name)[0].session)
        harness.drain()
    assert found[0] is found[1] and len({id(one) for one in found}) == 3


def test_recovery_ends_all_turns() -> None:
    harness = Harness(Setup(num_blocks=40, token_budget=40, session_eviction=True))
    found = []
    for name in ("broken off", "again"):
        harness.scheduler.recover("broken", 0.0)
        harness.scheduler.add(structs.replace(request(name, A, output=2), session="same"), 0.0)
        harness.scheduler.plan(0.0)
        found.append(inside.samples(harness.scheduler, name)[0].session)
    assert [one.running for one in found] == [1, 1] and found[0] is not found[1]


def test_a_session_that_waits_for_a_tool_outlives_one_that_waits_for_a_person() -> None:
    kept = Kept(4)
    learn(kept.table, gap=4.0, awaits="tool")
    learn(kept.table, gap=120.0, awaits="person")
    tool = kept.turn("tool", 2, at=1000.0, awaits="tool")
    person = kept.turn("person", 2, at=1002.0, awaits="person")
    kept.table.now = 1003.0
    assert list(kept.order) == [person[1], person[0], tool[1], tool[0]]


@pytest.mark.parametrize(
    ("marks", "output", "awaits"),
    [
        (((1,),), (0, 1, 0), "tool"),
        (((0, 1, 1), (1, 0, 1)), (0, 1, 0, 1), "tool"),
        (((1, 1),), (1, 0, 1), "person"),
        ((), (1, 1), ""),
    ],
)
def test_an_answer_says_what_its_session_waits_for(
    marks: tuple[tuple[int, ...], ...], output: tuple[int, ...], awaits: str
) -> None:
    one, matcher = sequence(call_marks=marks), matcher_of_none()
    matcher.admit(one, [])
    one.output[:], one.finish = output, Finish("stop")
    matcher.end(one)
    assert isinstance(one.session, Session) and one.session.awaits == awaits


def test_an_aborted_answer_says_nothing() -> None:
    one, matcher = sequence(call_marks=((1,),)), matcher_of_none()
    matcher.admit(one, [])
    one.finish = Finish("abort")
    matcher.end(one)
    assert isinstance(one.session, Session) and one.session.awaits == ""


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


HOST = Setup(num_blocks=6, token_budget=20, host_blocks=4, host_is_tier=True, session_eviction=True)
OTHER = (1, 1, 0, 0, 0, 1, 1, 1, 0)


def turn(harness: Harness, session: str, prompt: tuple[int, ...], salt: str = "") -> int:
    """Serve a request; return its cached tokens."""
    name = f"{session} {len(harness.clients)}"
    harness.add(request(name, prompt, output=2, session=session, cache_salt=salt))
    harness.drain()
    ended = harness.clients[-1].ended
    assert ended is not None
    cached: int = ended.timings.cached_tokens
    return cached


def test_some_sessions_in_steady_turns_stay_on_the_host() -> None:
    """Six of five blocks take turns, and there is room for three and a half in both memories together."""

    def hits(by_worth: bool) -> int:
        harness = Harness(replace(HOST, host_blocks=12, session_eviction=by_worth))
        return sum(turn(harness, f"s{at}", A, salt=f"{at}") for _ in range(20) for at in range(6))

    assert hits(by_worth=False) == 0
    assert hits(by_worth=True) > 0.2 * 20 * 6 * 8


def test_a_request_that_continues_text_on_the_host_is_its_sessions_next_turn() -> None:
    harness = Harness(replace(HOST, num_blocks=8, host_blocks=20))
    turn(harness, "", A)
    text = (*A, *harness.clients[-1].tokens[0])
    order = harness.scheduler._memory._pool._evictable
    first = order.owner(next(iter(order)))
    turn(harness, "", OTHER)
    turn(harness, "", (0,) * 9)
    assert inside.evictable_host_blocks(harness.scheduler) > 0 and first.turns == 1
    assert turn(harness, "", (*text, 0, 1)) == 10 and first.turns == 2


def test_gaps_are_watched_after_their_session_lost_its_blocks() -> None:
    """One in eight of the sessions that rest for ten minutes comes back: the gaps of the others count, too."""
    table = SessionTable()
    for number in range(200):
        session = table.named(f"{number}", "")
        table.now = 100.0 * number
        table.begin_turn(session)
        table.end_turn(session, 16)
        if number >= 8 and not number % 8:
            table.now += 1.0
            back = table.named(f"{number - 8}", "")
            table.begin_turn(back)
            table.end_turn(back, 16)
    resting = Session("")
    table.begin_turn(resting)
    table.end_turn(resting, 16)
    table.now += 700.0
    late = table.block_value(resting)
    table.now = 1e6
    assert late < 0.5 / 300, "an even chance within five minutes would be that"


def test_gaps_of_unrecognisable_sessions_are_not_watched() -> None:
    table = SessionTable()
    left, named, there = Session(""), table.named("a", ""), Session("")
    for session in (left, named, there):
        table.begin_turn(session)
        table.end_turn(session, 16)
    there.num_idle_blocks = 1
    table.now = 60.0
    table.block_value(named)
    assert len(table._watch) == 2 and left not in table._watch


def test_a_next_turn_need_not_repeat_the_answer() -> None:
    """Templates leave out the reasoning."""
    harness = Harness(Setup(num_blocks=40, token_budget=40, max_model_len=40, session_eviction=True))
    order = harness.scheduler._memory._pool._evictable
    harness.add(request("a", A, output=8))
    harness.drain()
    first = order.owner(next(iter(order)))
    turn(harness, "", (*A[:4], 1, 1, 1, 1, 1, 1))
    assert first.turns == 1, "it has left out more than the answer"
    turn(harness, "", (*A, (harness.clients[0].tokens[0][0] + 1) % 8, 0, 1))
    assert first.turns == 2
