"""Measure what the first decode step waits for behind the last chunk of its prompt: two engines of one thread each.

Where the decode engine is known first, it is asked before the prompt is computed, and layers travel while the prefill
engine computes; beside that the same with whole blocks alone, which travel when their step has ended, and with an
engine that is asked when the prompt is computed, as behind a router. Reported is how long behind the prefill
engine's last step the decode engine has all blocks, so that its first step could begin.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks.comparison import log_line
from benchmarks.engine_side import EngineSide
from benchmarks.kv_transfer.slow_link import slow_link
from benchmarks.shapes import write_config
from benchmarks.workloads import prompt
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.kv.transfer import client
from inflight.execution.kv.transfer.client import Arrivals
from inflight.execution.kv.transfer.peer_transfers import PeerTransfers
from inflight.execution.kv.transfer.wire import Blocks

BLOCK = 16  # tokens
CHUNKS = (64, 256, 512)
OF_CHUNKS = 2  # a prompt is as long
MODES = ("layers", "blocks", "afterwards")
ALLOWED, LAYERS_ALLOWED = 0.010, 2  # seconds, beside the transfer of so many layers of the last chunk


@dataclass(frozen=True, slots=True)
class Link:
    """rate: bytes a second; None: what this host's loopback does."""

    name: str
    rate: float | None


LINKS = (Link("loopback", None), Link("1 Gbit/s", 125e6))


@dataclass(slots=True)
class Overlap:
    """Time one prompt: seconds, and bytes of the last chunk's blocks that are computed, and that have arrived."""

    computed: list[tuple[float, int]] = field(default_factory=list)
    there: list[tuple[float, int]] = field(default_factory=list)
    last_step: float = 0.0


class Pair:
    """Two engines, and how one reaches the other."""

    def __init__(self, prefill: EngineSide, decode: EngineSide, address: tuple[str, int]):
        self.prefill, self.decode, self._address = prefill, decode, address
        here, there = prefill.engine.peer_transfers, decode.engine.peer_transfers
        assert here is not None and there is not None
        self.here, self.there = here, there

    def wait(self, name: str, tokens: tuple[int, ...], mode: str) -> tuple[float, float]:
        """When the prefill engine's last step had ended, and when its blocks were all there."""
        take = _request(name, tokens, KVTransfer(take=PeerAddress(*self._address, name)))
        watch = _Watch(self.there)
        with _without_layers(self.here) if mode == "blocks" else nullcontext():
            if mode != "afterwards":
                self.decode.add(take)
                time.sleep(0.05)  # so that it has asked
            self.prefill.add(_request(name, tokens, KVTransfer(give=name)))
            self.prefill.wait(name, 600)
            if mode == "afterwards":
                self.decode.add(take)
            self.decode.wait(name, 600)
        return self.prefill.times[name][0], watch.ended()


@contextmanager
def pair(shape: dict[str, object], chunk: int, link: Link) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        settings: dict[str, Any] = {
            "model": str(write_config(Path(folder), shape)),
            "load_format": "dummy",
            "threads": 1,
            "max_num_batched_tokens": chunk,
            "max_num_seqs": 2,
            "max_model_len": OF_CHUNKS * chunk + 64,
        }
        prefill = opened.enter_context(EngineSide("prefill", "tcp", timeout=300, hold=300, **settings))
        decode = opened.enter_context(EngineSide("decode", "tcp", timeout=300, hold=300, **settings))
        address = prefill.address("").host, prefill.address("").port
        if link.rate is not None:
            address = opened.enter_context(slow_link(address, link.rate))
        yield Pair(prefill, decode, address)


@dataclass(slots=True)
class Waited:
    """Seconds, by mode, and what has travelled when, of the last prompt."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    block_bytes: int = 0


def waits(shape: dict[str, object], chunk: int, link: Link, repeats: int) -> Waited:
    """In turns; the first prompt of each mode, with which connections are made, is left out."""
    found = Waited()
    rng, vocabulary = Random(7), int(str(shape["vocab_size"]))
    with pair(shape, chunk, link) as engines:
        for number in range(repeats + 1):
            for mode, waited in found.seconds.items():
                name, tokens = f"{mode} {number}", tuple(prompt(rng, OF_CHUNKS * chunk, vocabulary))
                with _watched(engines, chunk) as overlap:
                    overlap.last_step, there = engines.wait(name, tokens, mode)
                found.overlaps[mode] = overlap
                if number:
                    waited.append(there - overlap.last_step)
                log_line(
                    f"{link.name}, chunks of {chunk}, {name}: all blocks were there "
                    f"{1e3 * (there - overlap.last_step):.1f} ms behind the last step"
                )
        counts = engines.there.counts
        if counts.failed_pulls:
            raise RuntimeError(f"{counts.failed_pulls} of {counts.pulls} pulls failed")
        found.block_bytes = engines.there._client._memory.blocks.block_bytes
    return found


def allowed(chunk: int, layer_bytes: float, rate: float) -> float:
    """Seconds that the first decode step may wait. layer_bytes: of a layer in a block. rate: bytes a second."""
    return ALLOWED + LAYERS_ALLOWED * layer_bytes * handed(chunk) / rate


def _request(name: str, tokens: tuple[int, ...], transfer: KVTransfer) -> Request:
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=tokens, params=params, kv_transfer=transfer)


@contextmanager
def _without_layers(exchange: PeerTransfers) -> Iterator[None]:
    """Report no step before it has ended: blocks travel only then."""
    computing = exchange.begin_step
    exchange.begin_step = lambda sends: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        exchange.begin_step = computing  # type: ignore[method-assign]


@contextmanager
def _watched(engines: Pair, chunk: int) -> Iterator[Overlap]:
    """Return what of the last chunk's blocks is computed, as its layers are done, and what is there, as messages
    come."""
    overlap, have = Overlap(), engines.here.advance
    blocks = handed(chunk)

    class Watched(Arrivals):
        def add(self, message: Blocks) -> None:
            super().add(message)
            overlap.there.append((time.monotonic(), sum(self._arrived[-blocks:])))

    def on_bytes(nbytes: int) -> None:
        overlap.computed.append((time.monotonic(), nbytes * blocks))
        have(nbytes)

    engines.here.advance = on_bytes  # type: ignore[method-assign]
    try:
        with patch.object(client, "Arrivals", Watched):
            yield overlap
    finally:
        engines.here.advance = have  # type: ignore[method-assign]
        del overlap.computed[: -len(engines.prefill.engine.model.layers)]


def handed(chunk: int) -> int:
    """Blocks that the last chunk of a prompt completes for others: all but the one with the prompt's last token."""
    return chunk // BLOCK - 1


class _Watch:
    """When the next pull has ended."""

    def __init__(self, exchange: PeerTransfers):
        self._exchange, self._target, self._ended = exchange, exchange.counts.pulls + 1, 0.0
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def ended(self) -> float:
        self._thread.join()
        return self._ended

    def _main(self) -> None:
        while self._exchange.counts.pulls < self._target:
            time.sleep(5e-4)
        self._ended = time.monotonic()
