"""KV transfers between simulated engines: what is held, until when, and when it has come."""

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


def send(transfer_id: int, *hashes: int, export: str = EXPORT) -> Transfer:
    return Transfer(transfer_id, "send", export_tier(export), hashes, hashes)


def receive(transfer_id: int, *hashes: int, export: str = EXPORT) -> Transfer:
    return Transfer(transfer_id, "receive", PeerAddress("somewhere", 1, export).tier, hashes, hashes)


def ended(side: ExchangeSide, now: float) -> list[tuple[int, bool]]:
    """Drain the transfers that have ended by then, and whether they succeeded."""
    return sorted((one.transfer_id, one.error is None) for one in side.drain_ended(now))


def test_both_sides_end_when_the_last_block_has_come() -> None:
    exchange, sender, receiver = sides()
    sender.begin(send(1, 7, 8), 0.0)
    sender.begin(send(2), 0.0)
    assert ended(sender, 0.0) == [(2, True)]  # a transfer without blocks holds none
    receiver.begin(receive(5, 7, 8), 1.0)
    assert exchange.drain_changed() == {sender, receiver}
    assert sender.next_end == receiver.next_end == 1.0 + 0.004 + 0.032
    assert not ended(sender, 1.03) and not ended(receiver, 1.03)
    assert ended(sender, 1.04) == [(1, True)] and ended(receiver, 1.04) == [(5, True)]
    assert not sender.out and not receiver.out and sender.held == 0


def test_an_export_without_a_pull_expires() -> None:
    _, sender, receiver = sides()
    sender.begin(send(1, 7), 2.0)
    assert sender.out and sender.next_end == 2.0 + HOLD_SECONDS
    assert not ended(sender, 61.0)
    assert ended(sender, 62.0) == [(1, True)] and math.isinf(sender.next_end)
    receiver.begin(receive(5, 7), 63.0)
    assert ended(receiver, 63.0) == [(5, False)]
    sender.begin(send(2, 8), 64.0)
    assert ended(sender, 64.0) == [(2, True)]  # more of an export that has ended


def test_a_pull_of_an_export_that_never_begins_times_out() -> None:
    _, _, receiver = sides()
    receiver.begin(receive(5, 7), 1.0)
    assert receiver.next_end == 1.0 + TIMEOUT_SECONDS
    assert ended(receiver, 1.0 + TIMEOUT_SECONDS) == [(5, False)]


def test_a_pull_of_another_hash_fails_once_the_export_is_whole() -> None:
    exchange, sender, receiver = sides()
    receiver.begin(receive(5, 9), 0.0)
    sender.begin(send(1, 7), 1.0)
    assert not ended(receiver, 1.0)
    sender.begin(send(2), 2.0)
    assert receiver in exchange.drain_changed()
    assert ended(receiver, 2.0) == [(5, False)]
    assert ended(sender, 2.0) == [(1, True), (2, True)]


def test_the_oldest_exports_are_dropped_beyond_half_of_the_blocks() -> None:
    _, sender, receiver = sides(blocks=6)
    for number in range(3):
        sender.begin(send(number + 1, 2 * number, 2 * number + 1, export=f"e{number}"), float(number))
    assert sender.held == 2
    assert ended(sender, 2.0) == [(1, True), (2, True)]
    receiver.begin(receive(9, 0, export="e0"), 3.0)
    assert ended(receiver, 3.0) == [(9, False)]


def test_a_link_carries_one_piece_after_the_other() -> None:
    _, sender, receiver = sides()
    for export, transfer_id in (("a", 1), ("b", 2)):
        sender.begin(send(transfer_id, transfer_id, export=export), 0.0)
        receiver.begin(receive(10 + transfer_id, transfer_id, export=export), 0.0)
    assert ended(receiver, 0.021) == [(11, True)]
    assert ended(receiver, 0.041) == [(12, True)]


def test_layers_travel_while_they_are_computed_and_count_when_they_are_sent() -> None:
    link = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.004, layers=10)
    exchange, sender, receiver = sides(link=link)
    receiver.begin(receive(5, 7, 8), 0.0)
    sender.begin_early(EarlySend(export_tier(EXPORT), (7, 8), (7, 8)), 0.0, 1.0)
    exchange.drain_changed()
    assert receiver.next_end == TIMEOUT_SECONDS  # no block is sure yet
    sender.begin(send(1, 7, 8), 1.0)
    assert receiver in exchange.drain_changed()
    assert receiver.next_end == 1.0 + 0.032 / 10


def test_blocks_offered_early_and_pulled_late_travel_afterwards() -> None:
    """Half-way through the step its layers so far come with the others; behind it, all of the block does."""
    link = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.004, layers=10)
    for asked, end in ((0.5, 1.0 + 0.032 / 10), (1.5, 1.5 + 0.036)):
        _, sender, receiver = sides(link=link)
        sender.begin_early(EarlySend(export_tier(EXPORT), (7, 8), (7, 8)), 0.0, 1.0)
        if asked < 1.0:
            receiver.begin(receive(5, 7, 8), asked)
        sender.begin(send(1, 7, 8), 1.0)
        if asked > 1.0:
            receiver.begin(receive(5, 7, 8), asked)
        assert receiver.next_end == end
