"""Messages between the engine's process and its workers, and errors of ranks that are gone or have failed.

A worker's setup is pickled, by the process that has started it, into a pipe that no other process can reach; after that
messages are msgpack, and each side checks their types.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from inflight.core.types.plan import BatchPlan, Capacity, Transferred, decode_range, encode_range
from inflight.execution.backends.protocol import DType, KVShape
from inflight.execution.computing import KernelModel


class PeerLost(RuntimeError):
    """Another rank is gone, or has not come to where this one is."""


class WorkerFault(RuntimeError):
    """A worker has failed; the sentence names its rank. by_peer: another rank was the cause."""

    def __init__(self, sentence: str, by_peer: bool = False) -> None:
        super().__init__(sentence)
        self.by_peer = by_peer


class RanksLost(RuntimeError):
    """Ranks are no longer at the same step, and why: no further one can be computed."""


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
    """Allocate a capacity for which all ranks have memory."""

    capacity: Capacity


class Step(Struct, frozen=True, tag=True):
    """Compute a plan."""

    plan: BatchPlan


# -- from a worker ----------------------------------------------------------------------------------------------------
class Joining(Struct, frozen=True, tag=True):
    """The worker has started, and waits for the others."""


class Loaded(Struct, frozen=True, tag=True):
    """Its weights are in memory. available: bytes that are free beside them."""

    available: int


class Ready(Struct, frozen=True, tag=True):
    """It takes steps."""


class Computed(Struct, frozen=True, tag=True):
    """A step is computed.

    Attributes:
        token_ids: All that was drawn, in the plan's order.
        short: An error message where memory was short, so that the step's results are discarded.
    """

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

encode = msgspec.msgpack.Encoder(enc_hook=encode_range).encode
decode_to_worker = msgspec.msgpack.Decoder[ToWorker](ToWorker, dec_hook=decode_range).decode
decode_from_worker = msgspec.msgpack.Decoder[FromWorker](FromWorker).decode
