"""KV events as vLLM puts them on the wire, in msgpack, so that routers written for it read ours.

A message's content is an array of the time, the events and the rank among data-parallel replicas; an event is a map
with its `type`, whose optional keys are left out where they say nothing. (vLLM before 0.24 had arrays for events, too;
routers read either.) Knows names and shapes; not when something happened.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

GPU = "GPU"  # the memory that the engine computes in. Routers look for this name alone, and vLLM says it on CPUs, too
CPU = "CPU"  # the host's, where blocks are swapped to

ExtraKeys = tuple[str, ...] | None


class Batch(Struct, frozen=True, array_like=True, omit_defaults=True):
    """ts: seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class BlockStored(Struct, tag=True, omit_defaults=True):
    """Blocks that follow each other in one chain. token_ids: of all of them. lora_id: what adapters were told by before
    they had names; never set. extra_keys: of each block, what besides tokens its hash is made of."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None


class BlockRemoved(Struct, tag=True, omit_defaults=True):
    block_hashes: list[int]
    medium: str


class AllBlocksCleared(Struct, tag=True, frozen=True):
    """Of every memory."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
RANK = 0  # a replica is one engine; several are told apart by their addresses

encode = msgspec.msgpack.Encoder().encode
