"""The prefix cache: exact, by content and by what came before."""

from __future__ import annotations

from inflight.core.prefix import PrefixCache


def cache_of(*chain: tuple[int, ...], root: str = "") -> PrefixCache:
    """Blocks 0, 1, … hold the links of one chain."""
    cache = PrefixCache(2)
    node: object = root
    for block, tokens in enumerate(chain):
        node = cache.publish(node, tokens, block)  # type: ignore[arg-type]
    return cache


def found(cache: PrefixCache, tokens: tuple[int, ...], root: str = "") -> list[int]:
    return cache.match(root, tokens, len(tokens) // 2)[0]


def test_the_longest_chain_is_found() -> None:
    cache = cache_of((1, 2), (3, 4), (5, 6))
    assert found(cache, (1, 2, 3, 4, 5, 6, 7)) == [0, 1, 2]
    assert found(cache, (1, 2, 3, 4, 9, 9)) == [0, 1]
    assert found(cache, (9, 2, 3, 4)) == []
    assert cache.match("", (1, 2, 3, 4), 1)[0] == [0]
    assert found(cache, ()) == []


def test_the_same_tokens_in_another_place_are_another_content() -> None:
    cache = cache_of((1, 2), (1, 2))
    assert found(cache, (1, 2, 1, 2)) == [0, 1]
    assert found(cache, (3, 4, 1, 2)) == []


def test_roots_are_kept_apart() -> None:
    cache = cache_of((1, 2), root="tenant")
    assert found(cache, (1, 2)) == []
    assert found(cache, (1, 2), root="tenant") == [0]


def test_content_that_is_there_already_stays_where_it_is() -> None:
    cache = cache_of((1, 2))
    node = cache.publish("", (1, 2), 7)
    assert 7 not in cache and len(cache) == 1
    assert cache.match("", (1, 2), 1) == ([0], node)


def test_a_chain_whose_middle_was_dropped_cannot_be_entered_again() -> None:
    cache = cache_of((1, 2), (3, 4), (5, 6))
    cache.drop(1)
    assert found(cache, (1, 2, 3, 4, 5, 6)) == [0]
    _, node = cache.match("", (1, 2), 1)
    cache.publish(node, (3, 4), 8)
    assert found(cache, (1, 2, 3, 4, 5, 6)) == [0, 8]  # block 2 followed another node
    cache.drop(2)
    assert len(cache) == 2


def test_cleared_nodes_are_not_numbered_again() -> None:
    cache = cache_of((1, 2))
    _, before = cache.match("", (1, 2), 1)
    cache.clear()
    assert (len(cache), 0 in cache, found(cache, (1, 2))) == (0, False, [])
    assert cache.publish("", (1, 2), 0) != before
