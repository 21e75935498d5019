"""Eviction by what sessions are worth."""

from __future__ import annotations

from inflight.core.kv.block_pool import BlockPool
from inflight.core.sessions.gaps import Gaps, bucket
from inflight.core.sessions.session_eviction import SessionEviction
from inflight.core.sessions.session_table import SessionTable


def keeps(block: int) -> bool:
    return True


class Kept:
    """A pool whose blocks sessions have left."""

    def __init__(self, blocks: int = 8):
        self.table = SessionTable()
        self.order = SessionEviction(self.table)
        self.evicted: list[int] = []
        self.pool = BlockPool(blocks, self.evicted.append, self.order)

    def turn(self, name: str, count: int, at: float, tenant: str = "") -> tuple[int, ...]:
        """Of a session, which takes so many new blocks and leaves them."""
        self.table.now = at
        session = self.table.named(name, tenant)
        self.table.begins(session)
        blocks = self.pool.allocate(count)
        self.pool.release(reversed(blocks), keeps, session)
        self.table.ends(session, count * 16)
        return blocks


def learn(table: SessionTable, gap: float, times: int = 60) -> None:
    """Sessions of one turn come back after this gap."""
    for number in range(times):
        session = table.named(f"learnt {number}", "")
        table.now = 0.0
        table.begins(session)
        table.ends(session, 16)
        table.now = gap
        table.begins(session)
        session.running = 0


def test_who_has_rested_far_longer_than_sessions_do_goes_first() -> None:
    kept = Kept(4)
    learn(kept.table, gap=4.0)
    left = kept.turn("left", 2, at=100.0)
    back = kept.turn("back", 2, at=1000.0)
    kept.table.now = 1003.0
    assert list(kept.order) == [left[1], left[0], back[1], back[0]], "ends before roots"
    kept.pool.allocate(2)
    assert kept.evicted == [left[1], left[0]]


def test_of_sessions_in_turn_some_stay_whole_where_the_oldest_first_would_lose_all() -> None:
    """Ten sessions of four blocks take turns, and there is room for five of them."""

    def hits(by_worth: bool) -> int:
        table = SessionTable()
        order = SessionEviction(table) if by_worth else None
        content: dict[int, tuple[str, int]] = {}
        pool = BlockPool(20, lambda block: content.pop(block, None) and None, order)
        found = 0
        for turn in range(40):
            for at in range(10):
                name, table.now = f"s{at}", turn * 10.0 + at
                session = table.named(name, "")
                table.begins(session)
                mine = {place: block for block, (owner, place) in content.items() if owner == name}
                whole = [mine[place] for place in range(4) if all(one in mine for one in range(place + 1))]
                found += len(whole)
                for block in whole:
                    pool.acquire(block)
                new = pool.allocate(4 - len(whole))
                content.update({block: (name, len(whole) + place) for place, block in enumerate(new)})
                pool.release(reversed([*whole, *new]), content.__contains__, session)
                table.ends(session, 64)
        return found

    assert hits(by_worth=False) == 0
    assert hits(by_worth=True) > 0.25 * 40 * 10 * 4, "half of them would fit"


def test_what_two_sessions_have_had_goes_last() -> None:
    kept = Kept(4)
    (shared, mine) = kept.turn("a", 2, at=0.0)
    kept.pool.acquire(shared)
    other = kept.table.named("b", "")
    kept.pool.release([shared], keeps, other)
    kept.turn("c", 2, at=1.0)
    assert list(kept.order)[-1] == shared and mine in list(kept.order)[:-1]


def test_a_tenant_with_more_than_its_share_gives_way() -> None:
    kept = Kept(8)
    large = kept.turn("large", 6, at=5.0, tenant="a")
    kept.turn("small", 2, at=5.0, tenant="b")
    assert list(kept.order)[:6] == list(reversed(large))


def test_content_that_is_gone_is_nobodys() -> None:
    kept = Kept(2)
    kept.turn("a", 2, at=0.0)
    kept.turn("b", 2, at=1.0)
    assert all(kept.order.owner(block) is kept.table.named("b", "") for block in kept.order)
    assert len(kept.order) == 2 == kept.pool.evictable


def test_gaps_that_go_on_are_learnt_from() -> None:
    gaps = Gaps()
    for _ in range(100):
        gaps.ended(2.0)
    soon = gaps.turns_per_second(0.0)
    assert soon > 5 * gaps.turns_per_second(60.0) and bucket(2.0) < bucket(60.0)
    for _ in range(400):
        gaps.reached(0.0, 600.0)
    assert gaps.turns_per_second(0.0) < soon
