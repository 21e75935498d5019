"""Blocks are stored once what they hold is there, and not before."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.core.kv.prefix_cache import PrefixCache
from inflight.core.kv.write_behind import WriteBehind
from inflight.core.types.kv_blocks import SharedRoot

ROOT, TOKENS = SharedRoot("", None), (7,)


class Sink:
    tier = "shelf"

    def name(self, before: bytes | SharedRoot, token_ids: tuple[int, ...]) -> bytes:
        return bytes(token_ids)

    def wants(self, name: bytes) -> bool:
        return True


class Begun:
    def __init__(self) -> None:
        self.stored: list[tuple[int, ...]] = []

    def begin(
        self, kind: str, place: str, blocks: tuple[int, ...], numbers: tuple[int, ...], ended: Callable[[bool], None]
    ) -> int:
        self.stored.append(blocks)
        return len(self.stored)


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(1, lambda node: None)


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def writes(cache: PrefixCache, begun: Begun) -> WriteBehind:
    pool: Any = SimpleNamespace(num_blocks=64)
    transfers: Any = begun
    return WriteBehind(pool, cache, transfers, Sink())


def test_what_a_plan_computes_is_stored_behind_its_step(writes: WriteBehind, cache: PrefixCache, begun: Begun) -> None:
    writes.begin(0)
    writes.published(cache.publish(ROOT, TOKENS, 5), ROOT, TOKENS)
    writes.begin(1)
    assert not begun.stored
    writes.committed(0)
    writes.begin(2)
    assert begun.stored == [(5,)]


def test_what_is_computed_while_another_block_is_to_have_it_from_a_peer_is_stored_when_that_has_come(
    writes: WriteBehind, cache: PrefixCache, begun: Begun
) -> None:
    """The other block is the one that is found; that a step has computed the same does not fill it."""
    node = cache.publish(ROOT, TOKENS, 3)
    coming = cache.at(3)
    coming.loading = 1
    writes.begin(0)
    assert cache.publish(ROOT, TOKENS, 5) == node
    writes.published(node, ROOT, TOKENS)
    writes.committed(0)
    writes.begin(1)
    assert not begun.stored, "nothing is in block 3 yet"
    coming.loading = 0
    writes.loaded(node, ROOT, TOKENS)
    writes.begin(2)
    assert begun.stored == [(3,)]


def test_what_comes_back_from_the_host_is_stored_when_it_is_there(
    writes: WriteBehind, cache: PrefixCache, begun: Begun
) -> None:
    writes.begin(0)
    node = cache.publish(ROOT, TOKENS, 5)
    writes.published(node, ROOT, TOKENS)
    writes.committed(0)
    back = cache.at(5)
    back.loading = 1
    writes.begin(1)
    assert not begun.stored and writes.waiting
    back.loading = 0
    writes.begin(2)
    assert begun.stored == [(5,)] and writes.counts.missed == 0
