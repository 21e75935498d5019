"""Acting sessions: the blocks that newcomers leave to them, against a plain sum, and that many calls ask cheaply."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from inflight.core.kv.acting_sessions import ActingSessions
from inflight.core.kv.sessions import KEEP_RATE, MAX_PAUSE_S, Session, SessionTable, session_key
from inflight.core.sequence import Sequence

from .. import inspect_scheduler as inside
from ..builders import request, sequence
from ..harness import Harness, LaneSetup, Setup
from .test_session_eviction import A, Kept, learn


def kept_for(kept: Kept, arrival: float, blocks: int = 8, **fields: Any) -> int:
    """Return the blocks that a newcomer must leave to sessions that act."""
    one = sequence(0, arrival=arrival, **fields)
    return ActingSessions(kept.table, kept.order, blocks).kept_blocks(one)


def acting(cost: float = 1.0) -> Kept:
    """Return a pool where a session with a block has begun at 10, rests since 20, and is learnt to return in 4 s."""
    kept = Kept(block_seconds=lambda tokens: cost)
    learn(kept.table, 4.0)
    kept.table.named(("", "", "agent"), "", 10.0)
    session = kept.table.named(("", "", "agent"), "")
    kept.table.now = 20.0
    kept.table.begin_turn(session)
    kept.table.end_turn(session, 16)
    kept.pool.release(kept.pool.allocate(1), session)
    return kept


def test_newcomers_leave_an_acting_session_alone_while_keeping_it_saves_enough() -> None:
    kept = acting()
    kept.table.now = 21.0
    assert kept_for(kept, 15.0) == 1
    assert kept_for(kept, 5.0) == 0, "it came before the session began"
    assert kept_for(kept, 30.0, session="agent") == 0, "it is its own"
    kept.table.now = 20.0 + 200.0
    assert kept_for(kept, 15.0) == 0, "by now it is hardly likely to return"
    cheap = acting(cost=1e-3)
    cheap.table.now = 21.0
    assert kept_for(cheap, 15.0) == 0, "computing it again costs next to nothing"


def test_a_newcomer_waits_for_a_bounded_time() -> None:
    kept = acting()
    kept.table.now = 21.0
    assert kept_for(kept, 21.0 - MAX_PAUSE_S) == 0
    session = kept.table.named(("", "", "agent"), "")
    session.began = 20.0 - MAX_PAUSE_S
    assert kept_for(kept, 21.0 - MAX_PAUSE_S + 1) == 1
    assert kept_for(kept, 21.0 - MAX_PAUSE_S - 1) == 0


def test_a_tenant_keeps_its_share_of_the_blocks_from_others() -> None:
    kept = acting()
    session = kept.table.named(("", "", "agent"), "")
    kept.pool.release(kept.pool.allocate(6), session)
    kept.table.now = 21.0
    assert kept_for(kept, 15.0) == 7 and kept_for(kept, 15.0, tenant="other") == 4
    assert kept_for(kept, 15.0, tenant="other", session="agent") == 4, "the name is another tenant's"


@pytest.mark.parametrize("depth", [1, 2])
def test_newcomers_wait_for_acting_programs_while_others_run_and_plain_requests_do_not(depth: int) -> None:
    lanes = (LaneSetup(policy="program"),)
    setup = Setup(num_blocks=12, token_budget=40, max_model_len=40, session_eviction=True, lanes=lanes, depth=depth)
    harness = Harness(setup)
    harness.serve(request("agent", A, output=3, session="agent"))
    harness.add(request("runs", (1,) * 5, output=10, arrival=harness.now))
    harness.step()
    harness.add(request("new", (0,) * 13, output=1, arrival=harness.now, program="new"))
    harness.add(request("plain", (0,) * 13, output=4, arrival=harness.now))
    harness.step()
    new, plain = (inside.samples(harness.scheduler, name)[0] for name in ("new", "plain"))
    assert new.row is None, "the agent's blocks are kept"
    assert plain.row is not None, "it leaves soon, and waits for none"
    harness.drain()
    assert harness.timings(-2).queued_by["blocks"] > 0


def test_a_paused_call_may_be_aborted_and_beside_an_idle_engine_none_waits() -> None:
    lanes = (LaneSetup(policy="program"),)
    harness = Harness(Setup(num_blocks=12, token_budget=40, max_model_len=40, session_eviction=True, lanes=lanes))
    harness.serve(request("agent", A, output=3, session="agent"))
    harness.add(request("runs", (1,) * 5, output=10, arrival=harness.now))
    harness.step()
    for name in ("first", "second", "third"):
        harness.add(request(name, (0,) * 17, output=4, arrival=harness.now, program=name))
    harness.step()
    harness.abort("first")
    harness.abort("runs")
    harness.step()
    harness.step()
    assert inside.samples(harness.scheduler, "second")[0].row is not None
    harness.drain()


# -- many sessions, and many calls ----------------------------------------------------------------------------------


def summed(table: SessionTable, kept: Kept, one: Sequence, num_blocks: int, tenants: set[str] | None = None) -> int:
    """Return what `kept_blocks` does, by a walk over all sessions. tenants: Those of the plan's beginning."""
    own = table.known(session_key(one.request))
    began, held = one.request.arrival if own is None else own.began, Counter[str]()
    acting = list(table.acting())
    for session in acting:
        if session is not own and session.began <= began:
            held[session.tenant] += kept.order.num_idle_blocks(session)
    tenants = {session.tenant for session in acting} if tenants is None else tenants
    share = num_blocks // len(tenants | {one.request.tenant})
    return sum(blocks if tenant == one.request.tenant else min(blocks, share) for tenant, blocks in held.items())


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_those_of_a_walk_over_all_sessions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.core.kv.sessions.KEEP_RATE", 1e-6)
    rng, kept = random.Random(seed), Kept(300)
    acting = ActingSessions(kept.table, kept.order, 300)
    sessions, found = list[tuple[str, str]](), set[int]()
    for number in range(60):
        tenant, name = rng.choice("abc"), f"s{rng.randrange(40)}"
        key = tenant, "", name
        session = kept.table.named(key, tenant, rng.uniform(0, 50))
        kept.table.now += rng.random()
        kept.table.begin_turn(session)
        kept.table.end_turn(session, 64)
        kept.pool.release(kept.pool.allocate(rng.randrange(1, 4)), session)
        sessions.append((tenant, name))
        if number % 5:
            continue
        acting.begin_plan()
        kept.table.advance()
        tenants = {session.tenant for session in kept.table.acting()}
        for call in range(8):
            tenant, name = rng.choice([*sessions, ("a", "new"), ("d", "new"), ("", "")])
            one = sequence(call, arrival=rng.uniform(0, 60), tenant=tenant, session=name)
            found.add(acting.kept_blocks(one))
            assert acting.kept_blocks(one) == summed(kept.table, kept, one, 300, tenants)
            if call % 3 == 2:  # the plan's newcomers evict blocks
                held = kept.pool.allocate(min(kept.pool.free + rng.randrange(5), kept.pool.available))
                kept.pool.release(held, None)
    assert len(found) > 20 and kept.evicted


def two_acting() -> tuple[Kept, list[Session]]:
    """Return a pool of eight blocks, of which two acting sessions have two each."""
    kept = Kept(block_seconds=lambda tokens: 10 / KEEP_RATE)
    learn(kept.table, 4.0)
    sessions = list[Session]()
    for name in ("first", "second"):
        session = kept.table.named(("", "", name), "", 10.0)
        kept.table.begin_turn(session)
        kept.table.end_turn(session, 16)
        kept.pool.release(kept.pool.allocate(2), session)
        sessions.append(session)
    kept.table.now += 1.0
    return kept, sessions


def test_a_session_that_begins_its_turn_keeps_nothing_more() -> None:
    kept, sessions = two_acting()
    acting, one = ActingSessions(kept.table, kept.order, 8), sequence(0, arrival=30.0)
    assert acting.kept_blocks(one) == 4
    kept.table.begin_turn(sessions[0])
    assert acting.kept_blocks(one) == 2


def test_blocks_that_the_same_plan_evicts_are_kept_no_more() -> None:
    kept, sessions = two_acting()
    acting, one = ActingSessions(kept.table, kept.order, 8), sequence(0, arrival=30.0)
    assert acting.kept_blocks(one) == 4
    kept.pool.allocate(kept.pool.available - 1)
    assert acting.kept_blocks(one) == 1 == sum(map(kept.order.num_idle_blocks, sessions))
    kept.pool.allocate(1)
    assert acting.kept_blocks(one) == 0


def test_turns_while_no_call_asks_leave_nothing_behind() -> None:
    kept, sessions = two_acting()
    acting, one = ActingSessions(kept.table, kept.order, 8), sequence(0, arrival=30.0)
    acting.kept_blocks(one)
    acting.begin_plan()
    for _ in range(100):
        kept.table.begin_turn(sessions[0])
        kept.table.end_turn(sessions[0], 16)
    assert len(inside.noted_changes(acting)) <= 1


def test_a_plan_looks_at_the_sessions_once_however_many_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, acting = list[int](), SessionTable.acting

    def counted(self: SessionTable) -> Any:
        looks.append(1)
        return acting(self)

    monkeypatch.setattr(SessionTable, "acting", counted)
    lanes = (LaneSetup(policy="program"),)
    harness = Harness(Setup(num_blocks=12, token_budget=40, max_model_len=40, session_eviction=True, lanes=lanes))
    harness.serve(request("agent", A, output=3, session="agent"))
    harness.add(request("runs", (1,) * 5, output=10, arrival=harness.now))
    harness.step()
    looks.clear()
    for number in range(30):
        harness.add(request(f"new {number}", (0,) * 13, output=1, arrival=harness.now, program=f"new {number}"))
    harness.step()
    assert len(looks) == 1
    waiting = [inside.samples(harness.scheduler, f"new {number}")[0] for number in range(30)]
    assert all(one.row is None for one in waiting), "the agent's blocks are kept"
    harness.drain()
