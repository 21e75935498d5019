"""The exchange of simulated engines by itself: what is held, until when, and when it has come over."""

from __future__ import annotations

import math

from inflight.core.types.kv_transfer import PeerAddress, export_tier
from inflight.core.types.plan import EarlySend, Transfer
from inflight.simulate.disagg import HOLD_SECONDS, TIMEOUT_SECONDS, Exchange, ExchangeSide, Link

LINK = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.004)  # a block of 16 tokens takes 16 ms
EXPORT = "e"


def sides(blocks: int = 100, link: Link = LINK) -> tuple[Exchange, ExchangeSide, ExchangeSide]:
    exchange = Exchange(link)
    return exchange, ExchangeSide(exchange, blocks, 16), ExchangeSide(exchange, blocks, 16)


def send(transfer_id: int, *names: int, export: str = EXPORT) -> Transfer:
    return Transfer(transfer_id, "send", export_tier(export), names, names)


def receive(transfer_id: int, *names: int, export: str = EXPORT) -> Transfer:
    return Transfer(transfer_id, "receive", PeerAddress("somewhere", 1, export).tier, names, names)


def told(side: ExchangeSide, now: float) -> list[tuple[int, bool]]:
    """Transfers that have ended by then, and whether they did well."""
    return sorted((one.transfer_id, one.error is None) for one in side.ended(now))


def test_both_ends_hear_when_the_last_block_has_come() -> None:
    exchange, giver, taker = sides()
    giver.begin(send(1, 7, 8), 0.0)
    giver.begin(send(2), 0.0)
    assert told(giver, 0.0) == [(2, True)]  # that no more will come holds nothing
    taker.begin(receive(5, 7, 8), 1.0)
    assert exchange.drain_changed() == {giver, taker}
    assert giver.next_end == taker.next_end == 1.0 + 0.004 + 0.032
    assert not told(giver, 1.03) and not told(taker, 1.03)
    assert told(giver, 1.04) == [(1, True)] and told(taker, 1.04) == [(5, True)]
    assert not giver.out and not taker.out and giver.held == 0


def test_what_nobody_takes_is_given_up() -> None:
    _, giver, taker = sides()
    giver.begin(send(1, 7), 2.0)
    assert giver.out and giver.next_end == 2.0 + HOLD_SECONDS
    assert not told(giver, 61.0)
    assert told(giver, 62.0) == [(1, True)] and math.isinf(giver.next_end)
    taker.begin(receive(5, 7), 63.0)
    assert told(taker, 63.0) == [(5, False)]
    giver.begin(send(2, 8), 64.0)
    assert told(giver, 64.0) == [(2, True)]  # more of what is given up already


def test_who_waits_for_what_never_begins_fails_in_time() -> None:
    _, _, taker = sides()
    taker.begin(receive(5, 7), 1.0)
    assert taker.next_end == 1.0 + TIMEOUT_SECONDS
    assert told(taker, 1.0 + TIMEOUT_SECONDS) == [(5, False)]


def test_who_asks_for_another_name_fails_once_no_more_will_come() -> None:
    exchange, giver, taker = sides()
    taker.begin(receive(5, 9), 0.0)
    giver.begin(send(1, 7), 1.0)
    assert not told(taker, 1.0)
    giver.begin(send(2), 2.0)
    assert taker in exchange.drain_changed()
    assert told(taker, 2.0) == [(5, False)]
    assert told(giver, 2.0) == [(1, True), (2, True)]


def test_the_oldest_give_way_where_half_is_held() -> None:
    _, giver, taker = sides(blocks=6)
    for number in range(3):
        giver.begin(send(number + 1, 2 * number, 2 * number + 1, export=f"e{number}"), float(number))
    assert giver.held == 2
    assert told(giver, 2.0) == [(1, True), (2, True)]
    taker.begin(receive(9, 0, export="e0"), 3.0)
    assert told(taker, 3.0) == [(9, False)]


def test_a_link_carries_one_piece_after_the_other() -> None:
    _, giver, taker = sides()
    for export, transfer_id in (("a", 1), ("b", 2)):
        giver.begin(send(transfer_id, transfer_id, export=export), 0.0)
        taker.begin(receive(10 + transfer_id, transfer_id, export=export), 0.0)
    assert told(taker, 0.021) == [(11, True)]
    assert told(taker, 0.041) == [(12, True)]


def test_layers_travel_while_they_are_computed_and_count_when_they_are_handed_over() -> None:
    link = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.004, layers=10)
    exchange, giver, taker = sides(link=link)
    taker.begin(receive(5, 7, 8), 0.0)
    giver.begin_early(EarlySend(export_tier(EXPORT), (7, 8), (7, 8)), 0.0, 1.0)
    exchange.drain_changed()
    assert taker.next_end == TIMEOUT_SECONDS  # nothing of it is sure yet
    giver.begin(send(1, 7, 8), 1.0)
    assert taker in exchange.drain_changed()
    assert taker.next_end == 1.0 + 0.032 / 10


def test_what_is_offered_early_and_asked_for_late_travels_by_itself() -> None:
    """Half-way through the step its layers so far come with the others; behind it, all of the block does."""
    link = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.004, layers=10)
    for asked, end in ((0.5, 1.0 + 0.032 / 10), (1.5, 1.5 + 0.036)):
        _, giver, taker = sides(link=link)
        giver.begin_early(EarlySend(export_tier(EXPORT), (7, 8), (7, 8)), 0.0, 1.0)
        if asked < 1.0:
            taker.begin(receive(5, 7, 8), asked)
        giver.begin(send(1, 7, 8), 1.0)
        if asked > 1.0:
            taker.begin(receive(5, 7, 8), asked)
        assert taker.next_end == end
