"""A subscriber as routers have it: messages decoded by types in vLLM's form, and what they make it believe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

END = b"\xff" * 8


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(KVEventBatch).decode
encode = msgspec.msgpack.Encoder().encode

Content = tuple[str, str | None, tuple[int, ...]]  # salt, adapter, and all tokens from the first one on


@dataclass
class Mirror:
    """Blocks that are believed to be cached: memories by hash. named: every content that has come by, by its hash."""

    cached: dict[int, set[str]] = field(default_factory=dict)
    named: dict[int, Content] = field(default_factory=dict)

    @property
    def contents(self) -> set[tuple[Content, str]]:
        return {(self.named[number], medium) for number, media in self.cached.items() for medium in media}

    def hear(self, payload: bytes) -> None:
        batch = decode(payload)
        assert batch.data_parallel_rank == 0 and batch.events
        for event in batch.events:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved():
                    for number in event.block_hashes:
                        self.cached[number].remove(event.medium)  # a KeyError: it was never sent
                        if not self.cached[number]:
                            del self.cached[number]
                case AllBlocksCleared():
                    self.cached.clear()

    def _stored(self, event: BlockStored) -> None:
        size = event.block_size
        assert event.lora_id is None and len(event.token_ids) == size * len(event.block_hashes)
        assert event.extra_keys is not None and len(event.extra_keys) == len(event.block_hashes)
        before = event.parent_block_hash
        for at, (number, keys) in enumerate(zip(event.block_hashes, event.extra_keys, strict=True)):
            salt, _, known = ("", None, ()) if before is None else self.named[before]
            if before is not None:
                assert before in self.cached, "its chain has a hole"
            else:
                salt = "".join((keys or ())[event.lora_name is not None :])
            content = (salt, event.lora_name, known + tuple(event.token_ids[at * size : (at + 1) * size]))
            assert self.named.setdefault(number, content) == content, "two contents have one hash"
            assert event.medium not in self.cached.setdefault(number, set()), "it was sent before"
            self.cached[number].add(event.medium)
            before = number


class Subscriber:
    """Over real sockets."""

    def __init__(self, published: str, replayed: str | None = None, topic: bytes = b""):
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.setsockopt(zmq.SUBSCRIBE, topic)
        self._events.connect(published)
        self._missed = self._context.socket(zmq.DEALER)
        if replayed is not None:
            self._missed.connect(replayed)

    def hear(self, seconds: float = 5.0) -> tuple[bytes, int, bytes] | None:
        """Topic, number and payload of the next message."""
        if not self._events.poll(int(1000 * seconds)):
            return None
        topic, number, payload = self._events.recv_multipart()
        assert len(number) == 8
        return topic, int.from_bytes(number, "big"), payload

    def ask(self, first: int) -> list[tuple[int, bytes]]:
        """Messages that are retained from there on."""
        self._missed.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            assert self._missed.poll(10_000), "the end was not sent"
            empty, number, payload = self._missed.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return found
            found.append((int.from_bytes(number, "big"), payload))

    def close(self) -> None:
        self._context.destroy(linger=0)
