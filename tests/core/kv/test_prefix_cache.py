"""The prefix cache: exact, by content and by what came before."""

from __future__ import annotations

from inflight.core.kv.prefix_cache import CachedBlock, CachedChain, PrefixCache


def cache_of(*chain: tuple[int, ...], root: str = "") -> PrefixCache:
    """Return a cache in which blocks 0, 1, … are one chain."""
    cache = PrefixCache(2, on_drop=lambda node: None)
    node: object = root
    for block, tokens in enumerate(chain):
        node = cache.publish(node, tokens, block)
    return cache


def match(cache: PrefixCache, tokens: tuple[int, ...], limit: int | None = None, root: str = "") -> list[CachedBlock]:
    chain = CachedChain()
    cache.match(chain, root, lambda start, end: tokens[start:end], len(tokens) // 2 if limit is None else limit)
    return chain.blocks


def found(cache: PrefixCache, tokens: tuple[int, ...], limit: int | None = None, root: str = "") -> list[int]:
    return [one.block for one in match(cache, tokens, limit, root)]


def test_the_longest_chain_of_the_same_root_is_found() -> None:
    cache = cache_of((1, 2), (3, 4), (1, 2), root="tenant")
    asked = [(1, 2, 3, 4, 1, 2, 7), (1, 2, 3, 4, 9, 9), (9, 2, 3, 4), (3, 4, 1, 2), ()]
    assert [found(cache, tokens, root="tenant") for tokens in asked] == [[0, 1, 2], [0, 1], [], [], []]
    assert found(cache, (1, 2, 3, 4), 1, "tenant") == [0]
    assert found(cache, (1, 2)) == []


def test_content_that_is_cached_already_stays_in_its_block() -> None:
    cache = cache_of((1, 2))
    node = cache.publish("", (1, 2), 7)
    assert not cache.has_block(7) and len(cache) == 1
    (one,) = match(cache, (1, 2))
    assert (one.block, one.node) == (0, node)


def test_a_chain_whose_middle_was_dropped_cannot_be_entered_again() -> None:
    cache = cache_of((1, 2), (3, 4), (5, 6))
    cache.drop(cache.at_block(1))
    (root,) = match(cache, (1, 2, 3, 4, 5, 6))
    cache.publish(root.node, (3, 4), 8)
    assert found(cache, (1, 2, 3, 4, 5, 6)) == [0, 8], "block 2 followed another node"
    cache.drop(cache.at_block(2))
    assert len(cache) == 2


def test_cleared_nodes_are_not_numbered_again() -> None:
    cache = cache_of((1, 2))
    (before,) = match(cache, (1, 2))
    cache.clear()
    assert (len(cache), cache.has_block(0), found(cache, (1, 2))) == (0, False, [])
    assert cache.publish("", (1, 2), 0) != before.node


def test_content_on_the_host_is_found_and_its_chain_stays_whole() -> None:
    cache = cache_of((1, 2), (3, 4), (5, 6))
    middle = cache.at_block(1)
    cache.move(middle, None, 9)
    assert not cache.has_block(1) and len(cache) == 3
    cached = match(cache, (1, 2, 3, 4, 5, 6))
    assert [(one.block, one.host_block) for one in cached] == [(0, None), (None, 9), (2, None)]
    cache.move(middle, 7, None)
    assert found(cache, (1, 2, 3, 4, 5, 6)) == [0, 7, 2]
    cache.move(middle, None, 3)
    cache.drop(middle)
    assert cache.at_node(middle.node) is None and found(cache, (1, 2, 3, 4, 5, 6)) == [0]
