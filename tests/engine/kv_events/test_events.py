"""Changes of the prefix cache become events: chains together, and unreachable blocks removed."""

from __future__ import annotations

from inflight.core.types.kv_blocks import (
    BlockDropped,
    BlockMoved,
    BlockPublished,
    CacheChange,
    CacheCleared,
    SharedRoot,
    event_block_hash,
    event_root_hash,
)
from inflight.core.types.sampling import Adapter
from inflight.engine.kv_events.events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, SentBlocks, encode

from .subscriber import Mirror

ROOT = SharedRoot("", None)


def hashes(*blocks: tuple[int, ...], salt: str = "", adapter: str | None = None) -> list[int]:
    """Hashes of a chain."""
    found, before = [], event_root_hash(salt, adapter)
    for tokens in blocks:
        before = event_block_hash(before, tokens)
        found.append(int.from_bytes(before))
    return found


def chain(*blocks: tuple[int, ...], root: SharedRoot = ROOT, first: int = 1) -> list[CacheChange]:
    """Published with rising nodes."""
    nodes = range(first, first + len(blocks))
    return [
        BlockPublished(node, root if node == first else node - 1, tokens)
        for node, tokens in zip(nodes, blocks, strict=True)
    ]


def stored(hashes: list[int], before: int | None, *tokens: int, medium: str = "GPU") -> BlockStored:
    return BlockStored(hashes, before, [*tokens], 2, None, medium, None, [None] * len(hashes))


def test_blocks_that_follow_each_other_are_one_event() -> None:
    sent = SentBlocks()
    one, two, three = hashes((1, 2), (3, 4), (5, 6))
    assert sent.events(chain((1, 2), (3, 4))) == [stored([one, two], None, 1, 2, 3, 4)]
    assert sent.events([BlockPublished(3, 2, (5, 6))]) == [stored([three], two, 5, 6)]
    assert sent.events([BlockDropped(3), BlockDropped(2)]) == [BlockRemoved([three, two], "GPU")]


def test_chains_that_grow_alternately_are_separate_events() -> None:
    sent = SentBlocks()
    changes = [*chain((1, 2)), *chain((7, 8), first=10), BlockPublished(2, 1, (3, 4)), BlockPublished(11, 10, (9, 9))]
    parents = [one.parent_block_hash for one in sent.events(changes) if isinstance(one, BlockStored)]
    assert parents == [None, None, *hashes((1, 2)), *hashes((7, 8))]


def test_salts_and_adapters_are_extra_keys() -> None:
    root = SharedRoot("4:acme:", Adapter("sql", "/x", 3))
    (event,) = SentBlocks().events(chain((1, 2), (3, 4), root=root))
    named = hashes((1, 2), (3, 4), salt="4:acme:", adapter="sql")
    keys = [("sql", "4:acme:"), ("sql",)]
    assert event == BlockStored(named, None, [1, 2, 3, 4], 2, None, "GPU", "sql", keys)


def test_blocks_behind_a_hole_are_removed_and_not_stored_again() -> None:
    sent = SentBlocks()
    one, two, three = hashes((1, 2), (3, 4), (5, 6))
    sent.events(chain((1, 2), (3, 4), (5, 6)))
    assert sent.events([BlockDropped(2)]) == [BlockRemoved([two, three], "GPU")]
    # The cache goes on behind the block that cannot be reached, and drops it later.
    assert sent.events([BlockPublished(4, 3, (7, 8)), BlockDropped(3), BlockDropped(4)]) == []
    assert sent.events([BlockPublished(5, 1, (3, 4))]) == [stored([two], one, 3, 4)]


def test_a_block_that_moves_is_never_missing() -> None:
    sent = SentBlocks()
    one, two = hashes((1, 2), (3, 4))
    sent.events(chain((1, 2), (3, 4)))
    assert sent.events([BlockMoved(2, (3, 4), to_host=True), BlockMoved(9, (0, 0), to_host=True)]) == [
        stored([two], one, 3, 4, medium="CPU"),
        BlockRemoved([two], "GPU"),
    ]
    assert sent.events([BlockDropped(1)]) == [BlockRemoved([one], "GPU"), BlockRemoved([two], "CPU")]


def test_a_cleared_cache_is_cleared_in_every_memory_and_what_was_before_counts_no_more() -> None:
    sent = SentBlocks()
    two = hashes((1, 2), (3, 4))[1]
    sent.events([*chain((1, 2), (3, 4)), BlockMoved(2, (3, 4), to_host=True)])
    changes: list[CacheChange] = [BlockDropped(2), CacheCleared(), BlockDropped(1), CacheCleared(), *chain((1, 2))]
    assert sent.events(changes) == [
        BlockRemoved([two], "CPU"),
        AllBlocksCleared(),
        stored(hashes((1, 2)), None, 1, 2),
    ]


def test_an_adapter_that_takes_anothers_name_takes_its_blocks_back() -> None:
    sent = SentBlocks()
    old, new = (SharedRoot("", Adapter("a", path, number)) for path, number in (("/1", 0), ("/2", 1)))
    other = SharedRoot("", Adapter("b", "/1", 2))
    sent.events([*chain((1, 2), root=old), *chain((1, 2), root=other, first=5)])
    (name,) = hashes((9, 9), adapter="a")
    assert sent.events(chain((9, 9), root=new, first=10)) == [
        BlockRemoved(hashes((1, 2), adapter="a"), "GPU"),
        BlockStored([name], None, [9, 9], 2, None, "GPU", "a", [("a",)]),
    ]
    # Running requests go on with the old one; no other request finds their blocks.
    assert sent.events([BlockDropped(1), *chain((3, 4), root=old, first=20), BlockPublished(2, 1, (3, 4))]) == []
    sent = SentBlocks()
    old, new = (SharedRoot("", Adapter("a", path, number)) for path, number in (("/1", 0), ("/2", 1)))
    assert sent.events([*chain((1, 2), root=new), CacheCleared()]) == [AllBlocksCleared()]
    assert sent.events(chain((3, 4), root=old, first=20)) == []


def test_the_bytes_are_those_of_vllms_types() -> None:
    """Field by field, with what says nothing left out, as those types encode themselves."""
    from . import subscriber

    sent = SentBlocks()
    events = [
        *sent.events(chain((1, 2), (3, 4), root=SharedRoot("s", Adapter("a", "")))),
        *sent.events([BlockDropped(2), CacheCleared()]),
        *SentBlocks().events(chain((2**31, 0))),
    ]
    payload = encode(Batch(12.5, [*events, BlockRemoved([2**64 - 1], "CPU")], 0))
    assert subscriber.encode(subscriber.decode(payload)) == payload
    mirror = Mirror()
    mirror.hear(encode(Batch(0.0, events, 0)))
    assert mirror.contents == {(("", None, (2**31, 0)), "GPU")}
