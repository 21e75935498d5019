"""Disaggregated prefill and decode: KV transfers between simulated engines, and requests in two parts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core.builders import request
from msgspec import structs

from benchmarks.comparison import steady
from inflight.core.types.kv_transfer import PeerAddress, TierStats, export_tier
from inflight.core.types.plan import EarlySend, Transfer
from inflight.records.schema import RecordError, of_kind, read_records
from inflight.simulate import disagg
from inflight.simulate.disagg import (
    AFTER,
    HOLD_SECONDS,
    TIMEOUT_SECONDS,
    DecodeAsks,
    DisaggMode,
    Exchange,
    ExchangeSide,
    FirstToken,
    Link,
    for_decode,
    for_prefill,
)
from inflight.simulate.replay import replay
from inflight.simulate.replicas import Scaling
from inflight.simulate.simulation import Simulation, SimulationSetup, best_split, simulate
from inflight.workload.workload import Entry, Workload

from .setups import Affine, chat, pool

LINK = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.004)  # a block of 16 tokens takes 16 ms
EXPORT = "e"


def sides(blocks: int = 100, link: Link = LINK) -> tuple[Exchange, ExchangeSide, ExchangeSide]:
    exchange = Exchange(link)
    capacity = structs.replace(pool(num_blocks=blocks).capacity, state_snapshots=2, state_blocks=5)
    return exchange, ExchangeSide(exchange, capacity), ExchangeSide(exchange, capacity)


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


def test_pulls_fail_where_an_export_expires_never_begins_or_lacks_a_hash() -> None:
    _, sender, receiver = sides()
    sender.begin(send(1, 7), 2.0)
    assert sender.out and sender.next_end == 2.0 + HOLD_SECONDS
    assert not ended(sender, 61.0)
    assert ended(sender, 62.0) == [(1, True)] and math.isinf(sender.next_end)
    receiver.begin(receive(5, 7), 63.0)
    assert ended(receiver, 63.0) == [(5, False)]
    sender.begin(send(2, 8), 64.0)
    assert ended(sender, 64.0) == [(2, True)]  # more of an export that has ended
    _, _, receiver = sides()
    receiver.begin(receive(5, 7), 1.0)
    assert receiver.next_end == 1.0 + TIMEOUT_SECONDS
    assert ended(receiver, 1.0 + TIMEOUT_SECONDS) == [(5, False)]
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


def test_a_checkpoint_takes_the_link_as_long_as_blocks_of_its_bytes_and_is_held_for_itself() -> None:
    _, sender, receiver = sides()
    sent = structs.replace(send(1, 1, 2, 3), groups=(0, 0, 1))
    sender.begin(sent, 0.0)
    assert (sender.held, sender.held_states) == (2, 1)
    receiver.begin(receive(1, 1, 2, 3), 0.0)
    assert receiver.next_end == pytest.approx(0.004 + (2 + 5) * 0.016)
    assert ended(receiver, 1.0) == [(1, True)] and (sender.held, sender.held_states) == (0, 0)
    for number in (2, 3):
        sender.begin(structs.replace(send(number, 10 + number, export=str(number)), groups=(1,)), 1.0)
    assert sender.held_states == 1, "one of two checkpoints may be held"


@pytest.mark.parametrize("decode_asks", ["after", "first"])
def test_models_with_windows_and_states_go_on_where_their_prompt_was_computed(decode_asks: DecodeAsks) -> None:
    grouped = pool(model=Affine(), state_snapshots=20)
    grouped = replace(grouped, capacity=structs.replace(grouped.capacity, windows=(0, 32), state_blocks=3))
    setup = SimulationSetup(grouped, grouped, LINK, disagg_mode=DisaggMode(decode_asks))
    run = simulate(chat(20), setup)
    brought = tiers_of(run)
    assert brought.brought > 0 == brought.failed
    assert len(run.observations) == 20 and all(one.ttft is not None for one in run.observations)


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


LINK = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.5)  # a token takes a millisecond
QUICK = Link(1.0, 1000.0, 0.0)
FIRST = DisaggMode("first")
ONE = Workload((Entry(0.0, 40, 4),), "one")


def both(link: Link = LINK, mode: DisaggMode = AFTER, **more: Any) -> SimulationSetup:
    """A prefill and a decode engine."""
    return SimulationSetup(pool(model=Affine(), **more), pool(model=Affine(), **more), link, disagg_mode=mode)


def tiers_of(run: Simulation) -> TierStats:
    tiers = run.replicas[1].last.kv.tiers
    assert tiers is not None
    return tiers


def test_a_request_is_in_two_parts() -> None:
    whole = request("r", [1, 2, 3], output=5, max_tokens=9)
    prompt, answer = for_prefill(whole), for_decode(whole)
    assert (prompt.params.max_tokens, prompt.forced_output_tokens) == (1, 1)
    assert prompt.request_id != whole.request_id == answer.request_id
    assert prompt.kv_transfer is not None and answer.kv_transfer is not None and answer.kv_transfer.take is not None
    assert prompt.kv_transfer.give == answer.kv_transfer.take.export_id
    assert not AFTER.ends_with_prompt(request("r", output=1))
    assert DisaggMode("after", "prefill").ends_with_prompt(request("r", output=1))
    assert DisaggMode("after", "prefill").ends_with_prompt(request("r", output=None, max_tokens=1))


@pytest.mark.parametrize("decode_asks", ["after", "first"])
def test_times_of_one_request(decode_asks: DecodeAsks, tmp_path: Path) -> None:
    """Prompt of 40 in a step of 0.05 s; two blocks in 0.532 s on the link; then the 8 tokens behind them, 0.018 s, and
    three decodes of 0.011 s. All is in one chunk, so that to ask first brings nothing."""
    (seen,) = simulate(ONE, both(mode=DisaggMode(decode_asks)), tmp_path / "r.jsonl").observations
    assert list(seen.token_times) == pytest.approx([0.6, 0.611, 0.622, 0.633])
    assert (seen.prompt_tokens, seen.output_tokens, seen.outcome, seen.cached_tokens) == (40, 4, "completed", 0)
    steps = of_kind(list(read_records(tmp_path / "r.1.jsonl")), "step")
    chunks = [(one.start, one.length) for step in steps for one in step.plan.chunks]
    assert chunks == [(32, 8), (40, 1), (41, 1), (42, 1)]


@pytest.mark.parametrize(
    ("decode_asks", "layers", "begins"),
    [
        ("after", 1, 0.24 + 0.0202),
        ("after", 64, 0.24 + 0.0202),
        ("first", 1, 0.222 + 0.0074),
        ("first", 64, 0.222 + 0.0001),
    ],
)
def test_a_decode_engine_that_is_asked_first_takes_blocks_while_the_prompt_is_computed(
    decode_asks: DecodeAsks, layers: int, begins: float
) -> None:
    """Chunks of 64 in 0.074 s, three of them and one of 8 tokens in 0.018 s. Afterwards, 12 blocks take 0.0192 s and a
    millisecond; asked first, the last 4 that lie before the prompt's last token come behind their chunk, or, layer by
    layer, all but the last of 64 while it is computed."""
    link = Link(bytes_per_token=1e5, gbps=8.0, setup_s=0.001, layers=layers)
    (seen,) = simulate(Workload((Entry(0.0, 200, 4),), "one"), both(link, DisaggMode(decode_asks))).observations
    assert seen.first_token == pytest.approx(begins + 0.018)


def test_the_first_token_may_be_the_prefill_engines() -> None:
    workload = Workload((Entry(0.0, 40, 4), Entry(9.0, 40, 1)), "two")
    run = simulate(workload, both(mode=DisaggMode("after", "prefill")))
    assert list(run.observations[0].token_times) == pytest.approx([0.05, 0.611, 0.622, 0.633])
    assert list(run.observations[1].token_times) == pytest.approx([9.05])  # which does not move
    assert [one.last.kv.tiers.brought for one in run.replicas if one.last.kv.tiers] == [0, 2]


def test_what_the_decode_engine_has_does_not_travel() -> None:
    """A second prompt with the same beginning of 64 tokens."""
    entries = [Entry(9.0 * index, 81, 2, prefix=(1,), block_size=64) for index in range(2)]
    run = simulate(Workload(tuple(entries), "alike"), SimulationSetup(pool(), pool(), LINK))
    assert tiers_of(run).brought == 5 + 1


@pytest.mark.parametrize("disagg_mode", [AFTER, FIRST])
def test_blocks_of_peers_are_found_by_others_and_survive_preemption(disagg_mode: DisaggMode) -> None:
    decode = pool(num_blocks=24, max_rows=8)
    run = simulate(chat(40, 100.0, shared=64), SimulationSetup(pool(), decode, QUICK, disagg_mode=disagg_mode))
    assert all(one.outcome == "completed" for one in run.observations)
    assert run.preemptions > 0
    assert 0 < tiers_of(run).brought <= tiers_of(run).asked and not tiers_of(run).failed


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_that_is_slower_than_the_steps_holds_layers_up_as_it_does_chunks(depth: int) -> None:
    """12 blocks in 1.92 s, behind each other, in three pieces: they come as late as the link is slow."""
    firsts = []
    for layers in (1, 64):
        link = Link(bytes_per_token=1e6, gbps=0.8, setup_s=0.001, layers=layers)
        (seen,) = simulate(Workload((Entry(0.0, 200, 4),), "one"), both(link, FIRST, depth=depth)).observations
        firsts.append(seen.first_token)
    assert firsts[0] == pytest.approx(0.074 + 1.923 + 0.018, abs=0.02)
    assert firsts[1] == pytest.approx(firsts[0] - 0.074, abs=0.005)


def test_a_link_that_is_too_slow_costs_the_computation_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disagg, "TIMEOUT_SECONDS", 0.2)
    run = simulate(ONE, both())
    (seen,) = run.observations
    assert list(seen.token_times) == pytest.approx([0.05 + 0.2 + 0.05 + 0.011 * token for token in range(4)])
    assert (tiers_of(run).brought, tiers_of(run).failed) == (0, 2)


@pytest.mark.parametrize("disagg_mode", [AFTER, FIRST])
def test_no_more_than_half_of_a_senders_blocks_wait_for_others(disagg_mode: DisaggMode) -> None:
    """Twelve prompts of two blocks, a sender of 16, and a receiver that has room for few: the oldest are dropped, and
    computed where they are decoded; all are answered."""
    workload = Workload(tuple(Entry(0.0, 40, 30) for _ in range(12)), "many")
    run = simulate(workload, SimulationSetup(pool(num_blocks=16), pool(num_blocks=8), QUICK, disagg_mode=disagg_mode))
    assert all(one.outcome == "completed" for one in run.observations)
    assert tiers_of(run).failed > 0


def test_records_of_pools_are_refused_by_replay(tmp_path: Path) -> None:
    simulate(chat(5, 100.0), SimulationSetup(pool(), pool(), QUICK), tmp_path / "r.jsonl")
    for number in (0, 1):
        with pytest.raises(RecordError, match="whose peers' blocks are not in the record"):
            replay(list(read_records(tmp_path / f"r.{number}.jsonl")))


def test_the_same_seed_is_the_same_run() -> None:
    setup = SimulationSetup(pool(replicas=2), pool(replicas=2, router="least-loaded"), LINK, seed=3, disagg_mode=FIRST)
    assert simulate(chat(60, 20.0), setup).observations == simulate(chat(60, 20.0), setup).observations


@pytest.mark.parametrize("first_token", ["decode", "prefill"])
def test_turns_follow_answers(first_token: FirstToken) -> None:
    entries = (Entry(0.0, 40, 4), Entry(0.0, 90, 4, after=0, think_s=1.0))
    setup = SimulationSetup(pool(), pool(), QUICK, disagg_mode=DisaggMode("after", first_token))
    first, second = simulate(Workload(entries, "turns"), setup).observations
    assert second.sent is not None and second.sent >= first.ended + 1.0
    assert second.cached_tokens == 32


def test_the_best_split_is_searched() -> None:
    heavy = Workload(tuple(Entry(0.05 * k, 400, 3) for k in range(40)), "long prompts")

    def score(run: object) -> float:
        return -steady(run.observations).ttft.p99  # type: ignore[attr-defined]

    found = best_split(heavy, SimulationSetup(pool(), pool(), QUICK), 4, score)
    assert found[0][:2] == (3, 1)
    assert sorted((one[0], one[1]) for one in found) == [(1, 3), (2, 2), (3, 1)]
    assert json.dumps([one[3] for one in found])


def test_each_pool_scales_by_its_own_queue() -> None:
    """Long prompts make more of the first, long answers more of the second."""

    def most(entries: tuple[Entry, ...]) -> list[int]:
        prefill = pool(scaling=Scaling(4, 1.0), max_rows=4)
        decode = replace(prefill, router="least-loaded")
        run = simulate(Workload(entries, "load"), SimulationSetup(prefill, decode, QUICK))
        assert all(one.outcome == "completed" for one in run.observations)
        return [max(count for _, count in scaled.over_time()) for scaled in run.scaled if scaled is not None]

    prompts = most(tuple(Entry(0.3 * index, 480, 2) for index in range(100)))
    answers = most(tuple(Entry(0.3 * index, 17, 300) for index in range(100)))
    assert prompts[0] > prompts[1] == 1
    assert answers[1] > answers[0] == 1
