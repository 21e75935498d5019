"""Messages between the engine's process and its workers.

Knows shapes only. A worker's setup is pickled, by the process that has started it, into a pipe that no other process
can reach; after that it is msgpack, each side checking types.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from inflight.core.types.plan import BatchPlan, Capacity, Transferred, decode_range, encode_range
from inflight.execution.backends.protocol import DType, KVShape
from inflight.execution.computing import KernelModel


@dataclass(frozen=True, slots=True)
class Setup:
    """model: with this rank's shard; its files as a path. The others as in `ComputedModel.decoder`."""

    model: KernelModel
    dtype: DType
    threads: int
    max_positions: int
    max_tokens: int
    max_logit_rows: int
    kv_shape: KVShape


# -- to a worker ------------------------------------------------------------------------------------------------------
class Begin(Struct, frozen=True, tag=True):
    """The capacity for which all ranks have memory."""

    capacity: Capacity


class Step(Struct, frozen=True, tag=True):
    plan: BatchPlan


# -- from a worker ----------------------------------------------------------------------------------------------------
class Joining(Struct, frozen=True, tag=True):
    """It has started, and waits for the others."""


class Loaded(Struct, frozen=True, tag=True):
    """Its weights are in memory. available: bytes that are free beside them."""

    available: int


class Ready(Struct, frozen=True, tag=True):
    """It takes steps."""


class Computed(Struct, frozen=True, tag=True):
    """token_ids: all that was drawn, in the plan's order. short: a sentence where memory was, so that what the step
    has computed is discarded."""

    step: int
    token_ids: tuple[int, ...]
    short: str | None = None


class Copied(Struct, frozen=True, tag=True):
    """Transfers of its blocks have ended, between other messages."""

    ended: tuple[Transferred, ...]


class Failed(Struct, frozen=True, tag=True):
    """Its last message. by_peer: another rank was the cause."""

    sentence: str
    by_peer: bool


ToWorker = Begin | Step
FromWorker = Joining | Loaded | Ready | Computed | Copied | Failed


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_range)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker, dec_hook=decode_range)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    return _to_worker.decode(data)


def decode_from_worker(data: bytes) -> FromWorker:
    return _from_worker.decode(data)
