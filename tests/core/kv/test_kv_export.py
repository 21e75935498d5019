"""KV export: computed blocks of a prompt are held for a peer, under hashes that only the same request has."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec import structs

from inflight.core.kv.kv_export import PeerSource
from inflight.core.types.kv_blocks import SharedRoot
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress, export_tier
from inflight.core.types.plan import EarlySend, Transfer
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter, SamplingParams

from ..harness import Harness, Setup
from ..peering import identity

PEER = PeerAddress("10.0.0.1", 5000, "one")
PROMPT = (1, 0, 1, 1, 0, 0, 1, 1, 0)


def request(kv_transfer: KVTransfer | None, name: str = "r", **given: object) -> Request:
    params = SamplingParams(max_tokens=1, temperature=0)
    return Request(request_id=name, prompt_token_ids=PROMPT, params=params, kv_transfer=kv_transfer, **given)  # type: ignore[arg-type]


def names(asked: Request, salt: str = "", adapter: Adapter | None = None, held: int = 0) -> tuple[int, ...]:
    asked = structs.replace(asked, kv_transfer=KVTransfer(take=PEER))
    found = PeerSource(2, identity).match(asked, SharedRoot(salt, adapter), asked.prompt_token_ids, held)
    return () if found is None else found.remote_blocks


@pytest.fixture
def harness() -> Harness:
    return Harness(Setup(peers=True))


def sends(harness: Harness) -> list[Transfer]:
    return [one for plan in harness.plans for one in plan.transfers if one.kind == "send"]


def test_each_computed_chunk_is_exported_and_the_end_once(harness: Harness) -> None:
    harness.add(request(KVTransfer(give="one")))
    harness.drain()
    sent = sends(harness)
    assert [len(one.blocks) for one in sent] == [2, 2, 0], "9 tokens: 4 whole blocks before the last one, 2 a step"
    assert {one.tier for one in sent} == {export_tier("one")}
    assert tuple(name for one in sent for name in one.remote_blocks) == names(request(None))
    first = next(number for number, plan in enumerate(harness.plans) if sent[0] in plan.transfers)
    assert first == 1, "in the plan behind the step that computes it"


def test_blocks_are_held_until_the_peer_has_them() -> None:
    harness = Harness(Setup(peers=True, transfer_polls=(9,)))
    harness.add(request(KVTransfer(give="one")))
    for _ in range(4):
        harness.step()
    assert harness.scheduler.stats().held_blocks == 4, "the request has ended"
    assert harness.scheduler.idle, "no request waits for them here"
    for _ in range(12):
        harness.poll()
    assert harness.scheduler.stats().held_blocks == 0


def test_the_export_of_an_aborted_prompt_ends(harness: Harness) -> None:
    harness.add(request(KVTransfer(give="one")))
    harness.step()
    harness.abort("r")
    harness.drain()
    assert [len(one.blocks) for one in sends(harness)][-1] == 0


def test_hashes_depend_on_salt_adapter_and_tokens() -> None:
    asked = request(None)
    one, other = Adapter("a", "", 1), Adapter("a", "", 2)
    kinds = [names(asked), names(asked, "tenant"), names(asked, "", one), names(asked, "", other)]
    assert len(set(kinds)) == 4 and all(len(one) == 4 for one in kinds)
    assert names(asked, held=3) == names(asked)[3:] and names(asked, held=4) == ()
    changed = structs.replace(asked, prompt_token_ids=(0, *PROMPT[1:]))
    assert not set(names(changed)) & set(names(asked)), "each is of all tokens before it, too"


def taking_from(giving: Harness | None) -> Harness:
    taking = Harness(Setup(peers=True))
    if giving is not None:
        taking.executor._elsewhere = giving.executor._elsewhere
    return taking


def test_imported_blocks_are_not_computed(harness: Harness) -> None:
    harness.add(request(KVTransfer(give="one")))
    harness.drain()
    taking = taking_from(harness)
    taking.add(request(KVTransfer(take=PEER)))
    events = taking.drain()
    assert computed(taking) == 1
    assert taking.clients[0].tokens == harness.clients[0].tokens
    assert events[-1].timings.cached_tokens == 8  # type: ignore[union-attr]


def test_blocks_that_the_peer_lost_are_computed() -> None:
    taking = taking_from(None)
    taking.add(request(KVTransfer(take=PEER)))
    taking.drain()
    assert computed(taking) == len(PROMPT)


def test_only_missing_blocks_are_imported(harness: Harness) -> None:
    harness.add(request(KVTransfer(give="one")))
    harness.drain()
    taking = taking_from(harness)
    taking.add(structs.replace(request(None, "before"), prompt_token_ids=PROMPT[:5]))
    taking.drain()
    taking.add(request(KVTransfer(take=PEER), "after"))
    taking.drain()
    (received,) = (one for plan in taking.plans for one in plan.transfers if one.kind == "receive")
    assert received.remote_blocks == names(request(None))[2:]


def computed(harness: Harness) -> int:
    return sum(chunk.length for plan in harness.plans for chunk in plan.chunks)


def test_a_plan_names_the_blocks_that_it_completes(harness: Harness) -> None:
    harness.add(request(KVTransfer(give="one")))
    harness.add(request(None, "other"))
    harness.drain()
    early = [(number, one) for number, plan in enumerate(harness.plans) for one in plan.early_sends]
    sent = [(number, one) for number, plan in enumerate(harness.plans) for one in plan.transfers if one.blocks]
    assert [number for number, _ in early] == [0, 1], "with the steps of 4 tokens that make two blocks whole each"
    assert [number for number, _ in sent] == [1, 2], "and again when these have ended"
    for (_, before), (_, behind) in zip(early, sent, strict=True):
        assert before == EarlySend(behind.tier, behind.blocks, behind.remote_blocks)


def test_prompts_without_export_are_not_sent_early() -> None:
    harness = Harness(Setup())
    harness.add(request(None))
    harness.drain()
    assert not any(plan.early_sends for plan in harness.plans)


def test_loads_ahead_do_not_evict_blocks_loaded_for_waiting_sequences() -> None:
    """There is one row. Of four requests that wait for it three have their blocks loaded ahead, half of all blocks, and
    the fourth when it is next."""
    taking = Harness(Setup(peers=True, num_blocks=24, max_rows=1))
    first = SamplingParams(max_tokens=6, temperature=0)
    taking.add(structs.replace(request(None, "first"), prompt_token_ids=(0,), params=first))
    for number, begin in enumerate(product((0, 1), (0, 1))):
        asked = request(KVTransfer(take=PEER), f"r{number}")
        taking.add(structs.replace(asked, prompt_token_ids=(*begin, *PROMPT[2:])))
    taking.drain()
    brought = [sum(one.kind == "receive" for one in plan.transfers) for plan in taking.plans]
    assert brought[0] == 3 and sum(brought) == 4
