"""The backend itself: it packs weights, owns all memory, and begins passes.

It takes back only what it gave out. `Device` is the part that a runner needs; a decoder, and the loader of its weights,
need all of `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from inflight.core.types.plan import Capacity, Chunk
from inflight.execution.backends.matrices import Matrix, Rows
from inflight.execution.backends.protocol.forward_pass import ForwardPass, Pass
from inflight.execution.backends.protocol.handles import (
    Activation,
    Adapter,
    Delta,
    Experts,
    GateUp,
    Heads,
    InputBatch,
    KVCache,
    Linear,
    Rope,
    StateCache,
    Table,
    Vector,
)
from inflight.execution.backends.protocol.layer_memory import KVShape
from inflight.execution.backends.protocol.number_formats import Array, DType, Hold
from inflight.execution.backends.protocol.parameters import Gating, RopeTable, Routing
from inflight.execution.program import Program
from inflight.models.parts import LayerState


class PendingCopy(Protocol):
    """Blocks that are being copied while passes compute."""

    def query(self) -> bool:
        """Whether all of them are."""


class HostMemory(NamedTuple):
    """Host memory beside a device's own, to which blocks and snapshots of states are copied, and from there.

    Attributes:
        blocks: Of the KV cache's host blocks, one behind the other.
        snapshots: Of the host's snapshots, one behind the other; None: the model has no recurrent state.
        copy_snapshots: As `Device.copy_blocks`, of snapshots; those of the host are numbered behind the device's.
    """

    blocks: memoryview
    snapshots: memoryview | None
    copy_snapshots: Callable[[Sequence[int], Sequence[int]], PendingCopy | None]


class DeviceMemory(NamedTuple):
    """Bytes of a device's own memory: in all, those that are free, and those that this process has of it."""

    total: int
    free: int
    held: int


class Device(Protocol):
    """The part of a backend that a runner needs, whatever computes between tokens and logits: the KV cache, the
    input batch, and passes over them."""

    name: str  # e.g. "reference", "native avx512_bf16"
    dtype: DType
    threads: int
    batch_invariant: bool  # whether the bits of a row never depend on which rows are computed beside it
    depth: int  # steps worth having in flight: 2 where `finish` returns before the device is done
    asynchronous_copies: bool  # whether blocks are copied while passes compute

    def bytes_per_block(self, shape: KVShape) -> int: ...

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> KVCache:
        """`num_blocks` in the device's memory, and behind them, numbered on, so many in the host's, which no pass
        reads: they are copied to and from. On a CPU both are the same memory."""

    def block_memory(self, kv_cache: KVCache) -> memoryview | None:
        """Return the memory of all blocks, one behind the other, to be read and written beside the passes; None where
        this machine's memory does not hold them."""

    def host_memory(self, kv_cache: KVCache, states: StateCache | None, snapshots: int) -> HostMemory | None:
        """Return the memory of the host's blocks, and allocate so many snapshots of states beside them; None where
        blocks are not copied while passes compute."""

    def own_memory(self) -> DeviceMemory | None:
        """Return the device's memory; None: it computes in the host's."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Return how many bytes of the device's own memory `run` takes at its peak, beside those in use before."""

    def input_batch(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> InputBatch:
        """Return an input batch of `capacity.max_rows` request slots, and one more whose tokens are padding: it writes
        to `padding_block` alone. states: of as many slots, and of `capacity.state_snapshots` snapshots, where the model
        has recurrent layers."""

    # -- per step -----------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        """Copy whole blocks, in order, behind what was asked for before. None: what is asked for later waits for them.
        Where copies are asynchronous, passes that are asked for later do not: none may read or write these blocks, or
        discard what they hold, before the returned copy is done. Other copies keep their order."""

    def wait(self) -> None:
        """Wait for all work that the device was given."""

    def failure(self) -> str | None:
        """Asked when a step has failed: why the device computes nothing any more, in its own words; None where it does.
        Waits for what it was asked for."""

    def prepare(self, batch: InputBatch, kv_cache: KVCache, chunks: Sequence[Chunk]) -> Pass:
        """Begin a pass over the tokens of `chunks`, whose sequences and blocks the batch has. Raises ValueError for
        positions or tables that cannot be, and where a state is not that of the position at which its chunk starts."""


class WeightPacking(Protocol):
    """Once, at load. Weights are given as a checkpoint has them (`matrices.py`), [N, K], and may be read-only memory
    maps. Plain numbers are packed as `hold` says: converted to `dtype`, or quantized to int8, or to int4 in groups of
    `group` inputs. What comes quantized is packed as it is. Packing copies, so that the source can be released at
    once: blocks and small matrices may be read later, up to `finish_packing` or the first pass, so that they must stay
    as they are; the reader of a map's blocks then returns their pages to the system."""

    packs_fp8: bool  # whether matrices may be held in fp8, and keys and values

    def pack_vector(self, values: Array) -> Vector:
        """values float32[N]."""

    def pack_rope(self, table: RopeTable) -> Rope: ...

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> Linear:
        """`parts` are stacked along N (q, k, v) without building the stack, and may be held in different ways. bias
        float32[N] or None. On GPUs more than 133,144 columns in int8 with one scale for each output raise
        ValueError, since their sums could pass 32 bits."""

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> GateUp:
        """Both are held in one way: where they come in two, in that which `matrices.alike` makes of them. bias:
        float32[2, F], of gate and of up."""

    def pack_experts(
        self, gate_up: Sequence[GateUp], down: Sequence[Linear], routing: Routing, gating: Gating = "silu"
    ) -> Experts:
        """Pack X experts' matrices that this backend packed: [F, E] and [E, F], each of one kind (in int4 some may have
        offsets and others none, but codes must have one meaning). Raises ValueError for others, and for a routing that
        does not fit them."""

    def pack_heads(self, weights: Sequence[Linear]) -> Heads:
        """Matrices without biases that this backend packed, all [N, K] and held alike. Raises ValueError for others."""

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> Table:
        """Embedding table that is the output projection, too, through `.linear`, and held once."""

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> Table:
        """Embedding table that only gives rows, in `dtype`; or in int8, by the rule of `int8.py`, with a scale for each
        `share` columns of a row. pieces: plain numbers or blocks that stand for them, rows of it in their order, which
        are let go one after the other. Raises ValueError where they are not the table's shape, and where shares do not
        divide a row."""

    def pack_adapter(self, deltas: Iterable[Delta]) -> Adapter:
        """Pack deltas of matrices that this backend packed, into memory of their own. May be called beside passes, and
        lets them run between two deltas; the iterator may wait there. Raises ValueError for shapes that do not fit a
        matrix."""

    def finish_packing(self) -> None:
        """Finish packing: afterwards the source is not read any more, and weights have their final memory. Raises
        MemoryError where there is too little memory."""


@runtime_checkable
class Backend(Device, WeightPacking, Protocol):
    """A device that computes the operations of a decoder, too."""

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        """Return the bytes of one state of all layers; None: a layer without."""

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> StateCache:
        """Live states of `rows` rows, that of padding included, and of so many snapshots."""

    def compile(self, program: Program) -> Any:
        """Prepare a program of operations as it is now, to be run by each pass."""

    def move_rows(self, source: Activation, rows: Array, target: Activation, places: Array) -> None:
        """Rows int32[N] of a float32 activation to places int32[N] of another, behind what was asked for before. Of
        places that are named twice any row may stand there."""

    def spread(self, token_ids: Array, vocab_size: int, most: int) -> Callable[[Activation, int], Activation]:
        """Return a function that puts logits float32[S, N] of few tokens, int64[N], at their ids: float32[S,
        vocab_size], -inf elsewhere, which its next call overwrites; S is `most` at most."""

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Activation:
        """Memory for up to `rows` rows; pages that no pass reaches are never touched."""

    def prepare(self, batch: InputBatch, kv_cache: KVCache, chunks: Sequence[Chunk]) -> ForwardPass:
        """Begin a pass as `Device.prepare` does, with the operations of a model's layers."""
