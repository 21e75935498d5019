"""KV export: computed blocks of a prompt are held for a peer, under hashes that only the same request has."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec import structs

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.kv_export import ExportLayout, PeerSource
from inflight.core.types.kv_blocks import SharedRoot, block_hash
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress, export_tier
from inflight.core.types.plan import EarlySend, Transfer
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter

from .. import builders
from ..harness import Harness, Setup
from ..tiers import RememberingTier, identity

GIVE, TAKE = KVTransfer(give="one"), KVTransfer(take=PeerAddress("10.0.0.1", 5000, "one"))
PROMPT = (1, 0, 1, 1, 0, 0, 1, 1, 0)


def request(kv_transfer: KVTransfer | None, name: str = "r", prompt: Any = PROMPT, output: int = 1) -> Request:
    return structs.replace(builders.request(name, prompt, None, max_tokens=output), kv_transfer=kv_transfer)


def names(asked: Request, salt: str = "", adapter: Adapter | None = None, held: int = 0) -> tuple[int, ...]:
    asked = structs.replace(asked, kv_transfer=TAKE)
    found = PeerSource(ExportLayout(2), identity).chain(asked, SharedRoot(salt, adapter))
    assert found is not None
    hashes, tokens = [found.root], asked.prompt_token_ids
    for start in range(0, len(tokens), 2):
        hashes.append(block_hash(hashes[-1], tokens[start : start + 2]))
    numbers = [int.from_bytes(one) for one in hashes[1:]]
    return tuple(number for at, number in enumerate(numbers) if at >= held and found.has(at, 0, number))


def giving(**changes: Any) -> Harness:
    return Harness(Setup(peers=True, **changes), request(GIVE))


def taking_from(giver: Harness | None, **changes: Any) -> Harness:
    taking = Harness(Setup(peers=True, **changes))
    if giver is not None:
        giver.drain()
        taking.executor._elsewhere = giver.executor._elsewhere
    return taking


def transfers(harness: Harness, kind: str) -> list[Transfer]:
    return [one for plan in harness.plans for one in plan.transfers if one.kind == kind]


def computed(harness: Harness) -> int:
    return sum(chunk.length for plan in harness.plans for chunk in plan.chunks)


def test_each_computed_chunk_is_exported_and_the_end_once() -> None:
    harness = giving()
    harness.drain()
    sent = transfers(harness, "send")
    assert [len(one.blocks) for one in sent] == [2, 2, 0], "9 tokens: 4 whole blocks before the last one, 2 a step"
    assert {one.tier for one in sent} == {export_tier("one")}
    assert tuple(name for one in sent for name in one.remote_blocks) == names(request(None))
    assert sent[0] in harness.plans[1].transfers, "in the plan behind the step that computes it"


def test_blocks_are_held_until_the_peer_has_them() -> None:
    harness = giving(transfer_polls=(9,))
    harness.steps(4)
    assert harness.scheduler.stats().kv.held_blocks == 4, "the request has ended"
    assert harness.scheduler.idle, "no request waits for them here"
    for _ in range(12):
        harness.poll()
    assert harness.scheduler.stats().kv.held_blocks == 0


def test_the_export_of_an_aborted_prompt_ends() -> None:
    harness = giving()
    harness.step()
    harness.abort("r")
    harness.drain()
    assert [len(one.blocks) for one in transfers(harness, "send")][-1] == 0


def test_hashes_depend_on_salt_adapter_and_tokens() -> None:
    asked, one, other = request(None), Adapter("a", "", 1), Adapter("a", "", 2)
    kinds = [names(asked), names(asked, "tenant"), names(asked, "", one), names(asked, "", other)]
    assert len(set(kinds)) == 4 and all(len(one) == 4 for one in kinds)
    assert names(asked, held=3) == names(asked)[3:] and names(asked, held=4) == ()
    changed = structs.replace(asked, prompt_token_ids=(0, *PROMPT[1:]))
    assert not set(names(changed)) & set(names(asked)), "each is of all tokens before it, too"


def test_imported_blocks_are_not_computed() -> None:
    harness = giving()
    taking = taking_from(harness)
    assert taking.serve(request(TAKE)) == [8] and computed(taking) == 1
    assert taking.clients[0].tokens == harness.clients[0].tokens


def test_only_missing_blocks_are_imported() -> None:
    taking = taking_from(giving())
    taking.serve(request(None, "before", PROMPT[:5]))
    taking.serve(request(TAKE, "after"))
    (received,) = transfers(taking, "receive")
    assert received.remote_blocks == names(request(None))[2:]


def test_a_plan_names_the_blocks_of_an_exported_prompt_that_it_completes() -> None:
    harness = giving()
    harness.serve(request(None, "other"))
    early = [(number, one) for number, plan in enumerate(harness.plans) for one in plan.early_sends]
    sent = [(number, one) for number, plan in enumerate(harness.plans) for one in plan.transfers if one.blocks]
    assert [number for number, _ in early] == [0, 1], "with the steps of 4 tokens that make two blocks whole each"
    assert [number for number, _ in sent] == [1, 2], "and again when these have ended"
    for (_, before), (_, behind) in zip(early, sent, strict=True):
        assert before == EarlySend(behind.tier, behind.blocks, behind.remote_blocks)


def test_loads_ahead_do_not_evict_blocks_loaded_for_waiting_sequences() -> None:
    """Four requests wait for one row: three have their blocks loaded ahead, half of all blocks; the fourth when it is
    next."""
    taking = Harness(Setup(peers=True, num_blocks=24, max_rows=1), request(None, "first", (0,), output=6))
    for number, begin in enumerate(product((0, 1), (0, 1))):
        taking.add(request(TAKE, f"r{number}", (*begin, *PROMPT[2:])))
    taking.drain()
    brought = [sum(one.kind == "receive" for one in plan.transfers) for plan in taking.plans]
    assert brought[0] == 3 and sum(brought) == 4


WINDOWS: dict[str, Any] = {"windows": (0, 3, 3), "num_blocks": 60}
STATE: dict[str, Any] = {"snapshots": 4, "spacing": CheckpointSpacing(interval=100, min_gap=4, tail=2)}


@pytest.mark.parametrize("setup", [WINDOWS, STATE, WINDOWS | STATE, {"windows": (5,), "num_blocks": 40}])
def test_all_that_a_sequence_begins_from_is_imported(setup: dict[str, Any]) -> None:
    harness = giving(**setup)
    taking = taking_from(harness, **setup)
    last = 6 if "snapshots" in setup else 8
    assert taking.serve(request(TAKE)) == [last] and computed(taking) == len(PROMPT) - last
    assert taking.clients[0].tokens == harness.clients[0].tokens


def test_a_window_exports_what_it_still_shows_and_a_state_its_checkpoint_at_the_end() -> None:
    harness = giving(**WINDOWS | STATE)
    harness.drain()
    units = [unit for one in transfers(harness, "send") for unit in one.units()]
    assert [sum(group == own for group, _ in units) for own in range(4)] == [3, 1, 1, 1]
    assert len({name for one in transfers(harness, "send") for name in one.remote_blocks}) == 6
    assert units[-1][0] == 3


def test_a_checkpoint_is_taken_for_a_peer_wherever_another_prompt_ended() -> None:
    """Without a peer the branch would have the only one."""
    setup = STATE | {"num_blocks": 60}
    harness = Harness(Setup(peers=True, **setup))
    harness.serve(request(None, "before", (*PROMPT[:4], 2, 2, 2)))
    harness.serve(request(GIVE))
    taking = taking_from(harness, **setup)
    assert taking.serve(request(TAKE)) == [6]


@pytest.mark.parametrize("setup", [{"windows": (0, 3)}, {"windows": (0, 4, 8), "snapshots": 6}])
def test_a_window_keeps_what_a_peer_will_see_until_it_is_exported(setup: dict[str, Any]) -> None:
    """The plan behind the prompt's last chunk is made before that is computed."""
    setup |= {"num_blocks": 100, "block_size": 4, "depth": 2, "max_model_len": 40, "token_budget": 8}
    for length in range(9, 25):
        harness = Harness(Setup(peers=True, **setup), request(None, "other", output=20))
        harness.steps(2)
        prompt = tuple(position % 3 for position in range(length))
        harness.add(request(GIVE, prompt=prompt))
        taking = taking_from(harness, **setup)
        assert taking.serve(request(TAKE, prompt=prompt)) == [(length - 1) // 4 * 4]


def test_blocks_that_no_window_shows_any_more_end_the_export() -> None:
    """All layers have a window: a peer needs the whole chain, and computes the prompt itself."""
    setup: dict[str, Any] = {"windows": (2,), "depth": 2, "token_budget": 8, "num_blocks": 40}
    harness = giving(**setup)
    taking = taking_from(harness, **setup)
    assert len(transfers(harness, "send")[-1].blocks) == 0
    taking.serve(request(TAKE))
    assert computed(taking) == len(PROMPT)
    assert taking.clients[0].tokens == harness.clients[0].tokens


def test_an_imported_checkpoint_without_a_slot_is_not_waited_for() -> None:
    setup = STATE | {"snapshots": 1}
    taking = taking_from(giving(**setup), **setup)
    taking.executor._elsewhere.clear()
    taking.serve(request(TAKE))
    assert computed(taking) == len(PROMPT), "what is lost is computed"


def test_a_checkpoint_that_a_plan_in_flight_writes_again_is_not_exported() -> None:
    """At depth 2 the plan behind the exported chunk takes the checkpoint's slot again, and fails."""
    spacing = CheckpointSpacing(interval=4, min_gap=2, tail=2)
    setup: dict[str, Any] = {
        **{"num_blocks": 60, "depth": 2, "snapshots": 2, "token_budget": 12, "max_rows": 4, "spacing": spacing}
    }
    prompt = (0, 1, 1, 0, 1, 1, 1, 0, 1)
    harness = Harness(Setup(peers=True, **setup), request(None, "before", (*prompt, 0, 1), output=4))
    harness.step()
    harness.add(request(GIVE, prompt=prompt))
    harness.step()
    harness.add(request(None, "behind", prompt[:7]))
    harness.step(fail=True)
    taking = taking_from(harness, **setup)
    taking.serve(request(TAKE, prompt=prompt))
    assert "error" in harness.reasons and taking.clients[0].tokens == harness.clients[1].tokens


def test_a_checkpoint_is_held_until_it_is_exported() -> None:
    """At depth 2 the plan behind the exported chunk has a checkpoint of its own to write, and finds no slot."""
    setup = STATE | {"snapshots": 1, "depth": 2, "token_budget": 9, "num_blocks": 40}
    harness = Harness(Setup(peers=True, **setup), request(GIVE), request(None, "other", (0, 1) * 4))
    taking = taking_from(harness, **setup)
    assert taking.serve(request(TAKE)) == [6]


def test_an_imported_checkpoint_is_written_to_the_tier() -> None:
    taking = taking_from(giving(**STATE), **STATE, tier=RememberingTier(2))
    taking.serve(request(TAKE))
    stored = [unit for one in transfers(taking, "store") for unit in one.units()]
    assert [group for group, _ in stored] == [0, 0, 0, 1, 0], "imported, and the block behind"
