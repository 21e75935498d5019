"""Prefill on one engine and decode on another say what one engine says, whatever becomes of the transfer."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from models import write_model

from benchmarks.engine_side import SECRET
from benchmarks.engine_side import EngineSide as Side
from inflight.build import KVPeerSettings, build_engine
from inflight.config.engine import EngineSettings
from inflight.core.types.kv_transfer import KVTransfer, KVTransferOptions
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.bridge import AsyncBridge
from inflight.execution.kv.transfer.exports import Found, NotHeld, Reading
from inflight.execution.kv.transfer.transports import Run
from inflight.execution.kv.transfer.wire import PeerError
from inflight.peer_secret import PeerSecret

FEW = {"max_num_batched_tokens": 32, "num_blocks": 64, "max_num_seqs": 4}


def asked(name: str, seed: int, kv_transfer: KVTransfer | None = None, output: int = 12) -> Request:
    """A prompt of some chunks."""
    drawn = random.Random(seed)
    prompt = tuple(drawn.randrange(5, 380) for _ in range(drawn.randrange(100, 240)))
    params = SamplingParams(temperature=0.9, max_tokens=output, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=prompt, params=params, seed=seed, kv_transfer=kv_transfer)


def blocks(request: Request) -> int:
    return (len(request.prompt_token_ids) - 1) // 16


def test_the_decode_engine_is_asked_first() -> None:
    """It waits for the prompt's blocks while they are computed, chunk by chunk, with others beside it."""
    room = {**FEW, "num_blocks": 256}  # for all prompts at once: on a busy machine none may be taken before the last
    with Side("prefill", **room) as prefill, Side("decode", **FEW) as decode:  # type: ignore[arg-type]
        for seed in range(6):
            name = f"r{seed}"
            decode.add(asked(name, seed, KVTransfer(take=prefill.address(name))))
            prefill.add(asked(name, seed, KVTransfer(give=name), output=1))
        for seed in range(6):
            tokens, request = decode.wait(f"r{seed}"), asked("", seed)
            assert decode.cached(f"r{seed}") == 16 * blocks(request)
            prefill.add(asked(f"plain {seed}", seed))
            assert tokens == prefill.wait(f"plain {seed}")
            assert tokens[:1] == prefill.tokens[f"r{seed}"]
        counts = decode.engine.peer_transfers.counts  # type: ignore[union-attr]
        assert (counts.pulls, counts.failed_pulls) == (6, 0)
        handed = prefill.engine.loop.stats().kv_exports
        assert handed is not None and handed.taken == sum(blocks(asked("", seed)) for seed in range(6))
        assert decode.engine.loop.stats().kv_exports is None
        check_released(prefill, decode)


def in_turns(prefill: Side, decode: Side, seeds: range, when: str) -> list[int]:
    """Transfer prompts, asked for before or after they are computed; compare answers with the prefill engine's own.
    Returns the cached tokens of each."""
    cached = []
    for seed in seeds:
        name = f"r{seed}"
        take = asked(name, seed, KVTransfer(take=prefill.address(name)))
        give = asked(name, seed, KVTransfer(give=name), output=1)
        if when == "before":
            decode.add(take)
        prefill.add(give)
        prefill.wait(name)
        if when == "after":
            decode.add(take)
        tokens = decode.wait(name)
        prefill.add(asked(f"plain {seed}", seed))
        assert tokens == prefill.wait(f"plain {seed}"), seed
        cached.append(decode.cached(name))
    return cached


@pytest.fixture(scope="module", params=["gemma2", "gemma4", "mistral", "qwen3_5", "lfm2"])
def grouped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Settings of a model with windows beside full attention, of every layer, or with recurrent states."""
    folder = write_model(tmp_path_factory.mktemp(request.param), request.param, max_position_embeddings=1024)
    return {**FEW, "model": str(folder), "num_blocks": 256}


@pytest.mark.parametrize("when", ["before", "after"])
def test_all_groups_and_recurrent_states_are_transferred(grouped: dict[str, object], when: str) -> None:
    with Side("prefill", **grouped) as prefill, Side("decode", **grouped) as decode:
        capacity = decode.engine.capacity
        assert capacity.windows != (0,) or capacity.state_snapshots
        tail = 4 if capacity.state_snapshots else 1
        lengths = [len(asked("", seed).prompt_token_ids) for seed in range(4)]
        assert in_turns(prefill, decode, range(4), when) == [(length - tail) // 16 * 16 for length in lengths]
        assert decode.engine.peer_transfers.counts.failed_pulls == 0  # type: ignore[union-attr]
        check_released(prefill, decode)


def test_what_is_lost_of_any_group_is_computed(grouped: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some prompts lose a block of a group, some their checkpoint, some the connection within one."""
    dice, send, find = random.Random(4), Run.views, Reading.next

    def views(run: Run) -> list[memoryview]:
        found = send(run)
        if dice.random() < 0.1:
            raise PeerError("a fault of the test")
        return found

    def following(reading: Reading, keys: list[tuple[int, int]], first: int, seconds: float) -> Found:
        if keys[first][0] and dice.random() < 0.2:
            raise NotHeld("A fault of the test.")
        return find(reading, keys, first, seconds)

    monkeypatch.setattr(Run, "views", views)
    monkeypatch.setattr(Reading, "next", following)
    with Side("prefill", hold=2.0, **grouped) as prefill, Side("decode", timeout=5.0, **grouped) as decode:
        in_turns(prefill, decode, range(12), "after")
        counts = decode.engine.peer_transfers.counts  # type: ignore[union-attr]
        assert 0 < counts.failed_pulls < counts.pulls
        check_released(prefill, decode)


def test_an_idle_engine_does_not_count_blocks_as_held_that_are_free() -> None:
    """No step follows the prompt's; its blocks are held for a peer, and are free again when none comes in time."""
    options = KVTransferOptions(role="prefill", hold=0.2)
    peers = KVPeerSettings(options, PeerSecret(SECRET))

    async def scenario() -> None:
        bridge = AsyncBridge(build_engine(EngineSettings(threads=1, **FEW), peers=peers).loop)
        try:
            stream = await bridge.open(asked("r", 1, KVTransfer(give="r"), output=1))
            held = [(await bridge.stats()).kv.held_blocks]
            async for _ in stream:
                held.append((await bridge.stats()).kv.held_blocks)
            assert max(held) > 0
            async with asyncio.timeout(30):
                while held[-1]:
                    await asyncio.sleep(0.02)
                    held.append((await bridge.stats()).kv.held_blocks)
        finally:
            bridge.close()

    asyncio.run(scenario())


def test_layers_travel_before_their_step_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step goes on only when the decode engine has what is done of it."""
    whole = {**FEW, "max_num_batched_tokens": 256}
    with Side("prefill", **whole) as prefill, Side("decode", **whole) as decode:
        here, there = prefill.engine.peer_transfers, decode.engine.peer_transfers
        assert here is not None and there is not None
        advance, came = here.advance, list[int]()
        sent, received = here._exports._memory.blocks, there._client._memory.blocks.memory

        def waits(nbytes: int) -> None:
            advance(nbytes)
            block = min(block for one in here._exports._exports.values() for block, _ in one.computing.values())
            content, last = bytes(sent.views([block], 0, nbytes)[0]), time.monotonic() + 10
            while content not in bytes(received) and time.monotonic() < last:
                time.sleep(0.005)
            came.append(content in bytes(received))

        monkeypatch.setattr(here, "advance", waits)
        decode.add(asked("r", 1, KVTransfer(take=prefill.address("r"))))
        prefill.add(asked("r", 1, KVTransfer(give="r"), output=1))
        tokens = decode.wait("r")
        assert came == [True] * len(prefill.engine.model.layers)
        assert decode.cached("r") == 16 * blocks(asked("r", 1))
        monkeypatch.undo()
        prefill.add(asked("plain", 1))
        assert prefill.wait("plain") == tokens


@pytest.mark.parametrize("fails_at", [1, 3, 4])
def test_a_step_that_fails_between_two_layers_transfers_nothing(monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    with Side("prefill", **FEW) as prefill, Side("decode", **FEW) as decode:
        here = prefill.engine.peer_transfers
        assert here is not None
        advance, calls = here.advance, iter(range(1000))

        def broken(nbytes: int) -> None:
            advance(nbytes)
            if next(calls) == fails_at:
                raise RuntimeError("a fault of the test")

        monkeypatch.setattr(here, "advance", broken)
        decode.add(asked("r", 2, KVTransfer(take=prefill.address("r"))))
        prefill.add(asked("r", 2, KVTransfer(give="r"), output=1))
        prefill.wait("r")
        assert prefill.ended["r"].finishes[0].reason == "error"
        tokens = decode.wait("r")
        assert decode.cached("r") == 0 and decode.engine.peer_transfers.counts.failed_pulls == 1  # type: ignore[union-attr]
        decode.add(asked("plain", 2))
        assert decode.wait("plain") == tokens
        check_released(prefill, decode)


def test_what_failed_steps_and_aborted_prompts_have_written_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps fail between two layers by a dice, having written nonsense that travels before they do; and prompts are
    aborted beside their steps."""
    dice, count = random.Random(11), 24
    with Side("prefill", hold=4.0, **FEW) as prefill, Side("decode", timeout=5.0, **FEW) as decode:
        here = prefill.engine.peer_transfers
        assert here is not None
        advance, memory = here.advance, here._exports._memory.blocks

        def nonsense(nbytes: int) -> None:
            if dice.random() > (0.12 if nbytes == memory.block_bytes else 0.01):
                return advance(nbytes)
            exports = here._exports
            coming = [one for export in exports._exports.values() for one in export.computing.values()]
            for view in memory.views([block for block, step in coming if step is exports._step], 0, nbytes):
                view[:] = dice.randbytes(len(view))
            advance(nbytes)
            time.sleep(0.01)
            raise RuntimeError("a fault of the test")

        monkeypatch.setattr(here, "advance", nonsense)
        for seed in range(count):
            decode.add(asked(f"r{seed}", seed, KVTransfer(take=prefill.address(f"r{seed}")), output=6))
            prefill.add(asked(f"r{seed}", seed, KVTransfer(give=f"r{seed}"), output=1))
            if dice.random() < 0.2:
                prefill.abort(f"r{seed}")
        answers = [decode.wait(f"r{seed}") for seed in range(count)]
        monkeypatch.undo()
        counts = decode.engine.peer_transfers.counts  # type: ignore[union-attr]
        assert 0 < counts.failed_pulls < counts.pulls
        for seed in range(count):
            prefill.wait(f"r{seed}")
            prefill.add(asked(f"plain {seed}", seed, output=6))
            assert prefill.wait(f"plain {seed}") == answers[seed], seed
        check_released(prefill, decode)


def test_a_prompt_that_is_cached_is_not_pulled() -> None:
    with Side("prefill", **FEW) as prefill, Side("both", **FEW) as decode:
        decode.add(asked("before", 1))
        expected = decode.wait("before")
        prefill.add(asked("r", 1, KVTransfer(give="r"), output=1))
        prefill.wait("r")
        decode.add(asked("r", 1, KVTransfer(take=prefill.address("r"))))
        assert decode.wait("r") == expected
        assert decode.engine.peer_transfers.counts.pulls == 0  # type: ignore[union-attr]


def test_a_peer_that_closes_while_blocks_travel_costs_computing_alone() -> None:
    with Side("decode", **FEW) as decode:
        with Side("prefill", **FEW) as prefill:
            address = prefill.address("r")
            decode.add(asked("r", 2, KVTransfer(take=address)))
            prefill.add(asked("r", 2, KVTransfer(give="r"), output=1))
            time.sleep(0.02)
        tokens = decode.wait("r")
        decode.add(asked("plain", 2))
        assert decode.wait("plain") == tokens
        check_released(decode)


def test_what_never_comes_is_computed_when_its_time_is_over() -> None:
    """The prefill engine has another prompt, or none."""
    with Side("prefill", hold=0.3, **FEW) as prefill, Side("decode", timeout=1.0, **FEW) as decode:
        decode.add(asked("never", 3, KVTransfer(take=prefill.address("never"))))
        prefill.add(asked("other", 4, KVTransfer(give="other"), output=1))
        decode.add(asked("other", 3, KVTransfer(take=prefill.address("other"))))
        assert decode.wait("never") == decode.wait("other")
        check_released(prefill, decode)


@pytest.mark.parametrize("other", [{"secret": b"another secret, as long"}, {"dtype": "float32"}, {"block_size": 32}])
def test_another_engine_is_refused_and_the_prompt_computed(other: dict[str, object]) -> None:
    with Side("prefill", **{**FEW, **other}) as prefill, Side("decode", **FEW) as decode:  # type: ignore[arg-type]
        prefill.add(asked("r", 5, KVTransfer(give="r"), output=1))
        prefill.wait("r")
        decode.add(asked("r", 5, KVTransfer(take=prefill.address("r"))))
        tokens = decode.wait("r")
        decode.add(asked("plain", 5))
        assert decode.wait("plain") == tokens
        assert decode.engine.peer_transfers.counts.failed_pulls == 1  # type: ignore[union-attr]


def test_an_engine_that_is_interrupted_while_it_plans_holds_nothing_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It resets: exports end at once, and it goes on."""
    with Side("prefill", hold=60, **FEW) as prefill, Side("decode", **FEW) as decode:
        prefill.add(asked("r", 7, KVTransfer(give="r"), output=1))
        first = prefill.wait("r")
        loop, faults = prefill.engine.loop, iter([True])
        plan = loop._scheduler.plan

        def broken(now: float) -> object:
            if next(faults, False):
                raise KeyboardInterrupt
            return plan(now)

        monkeypatch.setattr(loop._scheduler, "plan", broken)
        prefill.interrupts = True
        began = time.monotonic()
        prefill.add(asked("doomed", 8))
        prefill.wait("doomed")
        assert prefill.ended["doomed"].finishes[0].reason == "error"
        assert time.monotonic() - began < 30
        decode.add(asked("r", 7, KVTransfer(take=prefill.address("r"))))
        assert decode.wait("r")[:1] == first and decode.cached("r") == 0
        check_released(prefill, decode)


def test_an_export_that_no_peer_takes_ends() -> None:
    with Side("prefill", hold=0.3, **FEW) as prefill:
        prefill.add(asked("r", 6, KVTransfer(give="r"), output=1))
        prefill.wait("r")
        check_released(prefill)


def check_released(*sides: Side, seconds: float = 10.0) -> None:
    """No block is held any more. What peers have taken, or did not come for, an engine hears of with its next step."""
    last, tries = time.monotonic() + seconds, 0
    for side in sides:
        while side.engine.loop.stats().kv.held_blocks:
            assert time.monotonic() < last, "blocks are held without a request"
            time.sleep(0.05)
            tries += 1
            side.add(Request(request_id=f"try {tries}", prompt_token_ids=(5,), params=SamplingParams(max_tokens=1)))
            side.wait(f"try {tries}")
