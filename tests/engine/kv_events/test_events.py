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
    """Of a chain."""
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


def test_blocks_that_follow_each_other_are_told_together() -> None:
    told = SentBlocks()
    one, two, three = hashes((1, 2), (3, 4), (5, 6))
    assert told.events(chain((1, 2), (3, 4))) == [
        BlockStored([one, two], None, [1, 2, 3, 4], 2, None, "GPU", None, [None, None])
    ]
    assert told.events([BlockPublished(3, 2, (5, 6))]) == [
        BlockStored([three], two, [5, 6], 2, None, "GPU", None, [None])
    ]
    assert told.events([BlockDropped(3), BlockDropped(2)]) == [BlockRemoved([three, two], "GPU")]


def test_chains_that_grow_in_turns_are_told_apart() -> None:
    told = SentBlocks()
    changes = [*chain((1, 2)), *chain((7, 8), first=10), BlockPublished(2, 1, (3, 4)), BlockPublished(11, 10, (9, 9))]
    events = told.events(changes)
    assert [one.parent_block_hash for one in events if isinstance(one, BlockStored)] == [
        None,
        None,
        hashes((1, 2))[0],
        hashes((7, 8))[0],
    ]


def test_salts_and_adapters_are_told_as_extra_keys() -> None:
    root = SharedRoot("4:acme:", Adapter("sql", "/x", 3))
    (event,) = SentBlocks().events(chain((1, 2), (3, 4), root=root))
    assert event == BlockStored(
        hashes((1, 2), (3, 4), salt="4:acme:", adapter="sql"),
        None,
        [1, 2, 3, 4],
        2,
        None,
        "GPU",
        "sql",
        [("sql", "4:acme:"), ("sql",)],
    )


def test_what_is_behind_a_hole_is_taken_back_and_stays_untold() -> None:
    told = SentBlocks()
    one, two, three = hashes((1, 2), (3, 4), (5, 6))
    told.events(chain((1, 2), (3, 4), (5, 6)))
    assert told.events([BlockDropped(2)]) == [BlockRemoved([two, three], "GPU")]
    # The cache goes on behind the block that nobody reaches any more, and drops it later.
    assert told.events([BlockPublished(4, 3, (7, 8)), BlockDropped(3), BlockDropped(4)]) == []
    assert told.events([BlockPublished(5, 1, (3, 4))]) == [
        BlockStored([two], one, [3, 4], 2, None, "GPU", None, [None])
    ]


def test_a_block_that_moves_is_never_missing() -> None:
    told = SentBlocks()
    one, two = hashes((1, 2), (3, 4))
    told.events(chain((1, 2), (3, 4)))
    assert told.events([BlockMoved(2, (3, 4), to_host=True), BlockMoved(9, (0, 0), to_host=True)]) == [
        BlockStored([two], one, [3, 4], 2, None, "CPU", None, [None]),
        BlockRemoved([two], "GPU"),
    ]
    assert told.events([BlockDropped(1)]) == [BlockRemoved([one], "GPU"), BlockRemoved([two], "CPU")]


def test_a_cleared_cache_is_cleared_in_every_memory_and_what_was_before_counts_no_more() -> None:
    told = SentBlocks()
    two = hashes((1, 2), (3, 4))[1]
    told.events([*chain((1, 2), (3, 4)), BlockMoved(2, (3, 4), to_host=True)])
    changes: list[CacheChange] = [BlockDropped(2), CacheCleared(), BlockDropped(1), CacheCleared(), *chain((1, 2))]
    assert told.events(changes) == [
        BlockRemoved([two], "CPU"),
        AllBlocksCleared(),
        BlockStored(hashes((1, 2)), None, [1, 2], 2, None, "GPU", None, [None]),
    ]


def test_an_adapter_that_takes_anothers_name_takes_its_blocks_back() -> None:
    told = SentBlocks()
    old, new = (SharedRoot("", Adapter("a", path, number)) for path, number in (("/1", 0), ("/2", 1)))
    other = SharedRoot("", Adapter("b", "/1", 2))
    told.events([*chain((1, 2), root=old), *chain((1, 2), root=other, first=5)])
    (name,) = hashes((9, 9), adapter="a")
    assert told.events(chain((9, 9), root=new, first=10)) == [
        BlockRemoved(hashes((1, 2), adapter="a"), "GPU"),
        BlockStored([name], None, [9, 9], 2, None, "GPU", "a", [("a",)]),
    ]
    # Requests under way go on with the old one; nobody else will find what they compute.
    assert told.events([BlockDropped(1), *chain((3, 4), root=old, first=20), BlockPublished(2, 1, (3, 4))]) == []


def test_an_adapter_whose_blocks_were_cleared_at_once_has_taken_the_name_all_the_same() -> None:
    told = SentBlocks()
    old, new = (SharedRoot("", Adapter("a", path, number)) for path, number in (("/1", 0), ("/2", 1)))
    assert told.events([*chain((1, 2), root=new), CacheCleared()]) == [AllBlocksCleared()]
    assert told.events(chain((3, 4), root=old, first=20)) == []


def test_the_bytes_are_those_of_vllms_types() -> None:
    """Field by field, with what says nothing left out, as those types encode themselves."""
    from . import subscriber

    told = SentBlocks()
    events = [
        *told.events(chain((1, 2), (3, 4), root=SharedRoot("s", Adapter("a", "")))),
        *told.events([BlockDropped(2), CacheCleared()]),
        *SentBlocks().events(chain((2**31, 0))),
    ]
    payload = encode(Batch(12.5, [*events, BlockRemoved([2**64 - 1], "CPU")], 0))
    assert subscriber.encode(subscriber.decode(payload)) == payload
    mirror = Mirror()
    mirror.hear(encode(Batch(0.0, events, 0)))
    assert mirror.contents == {(("", None, (2**31, 0)), "GPU")}
