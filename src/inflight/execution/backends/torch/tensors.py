"""Tensors that operations on a device read beside activations and weights: of the pass, of a layer cache, of states.

Everything that differs from step to step is a tensor on the device at an address that does not change, so that a
captured graph finds it there; the few whole numbers beside them are fixed for a graph.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PassTensors(NamedTuple):
    """Where the tokens of a pass lie (`protocol.AttentionMetadata` has the meanings), of T tokens in C chunks.

    Block tables are the slots' own, whole: position p of chunk c lives, for the layers of group g, in block
    `block_tables[g, rows[c], p // B]`, at p % B. A pass that a graph replays is filled up to as many tokens and as many
    chunks as the graph has, with tokens of the padding row at position 0, a chunk each, and chunks of none.

    longest_chunk, longest_context: no chunk has more tokens, none ends behind more positions (where a graph is captured
    1, or T if its passes have chunks of several tokens; and the longest sequence).
    """

    token_ids: Tensor  # int32[T]
    positions: Tensor  # int32[T]
    chunk_of: Tensor  # int32[T]
    rows: Tensor  # int32[C], the slot of each chunk
    query_start: Tensor  # int32[C + 1]
    context_len: Tensor  # int32[C]
    block_tables: Tensor  # int32[groups, slots, blocks of the longest sequence]
    block_size: int
    longest_chunk: int
    longest_context: int

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


class LayerKV(NamedTuple):
    """A layer's place in all blocks, as views of the cache's memory. G heads, D and M numbers of a key and of a value.

    values None: they are the keys' first numbers (latent attention). Scales: of keys and values in int8 or fp8, one for
    each position and head.
    """

    group: int
    keys: Tensor  # act, int8 or float8_e4m3fn [blocks, B, G, D], not contiguous over blocks
    values: Tensor | None  # [blocks, B, G, M]
    key_scales: Tensor | None = None  # float32[blocks, B, G]
    value_scales: Tensor | None = None  # float32[blocks, B, G]


class RopeTensors(NamedTuple):
    """`protocol.RopeTable` on the device."""

    cos: Tensor  # float32[positions, R / 2]
    sin: Tensor  # float32[positions, R / 2]
    q_scale: Tensor | None  # float32[positions]


class LayerStates(NamedTuple):
    """States of one recurrent layer: of rows, then of snapshots."""

    inputs: Tensor  # act[states, K - 1, C]
    matrices: Tensor  # float32[states, H, key_dim, value_dim]


class StateTensors(NamedTuple):
    """Which states a pass's chunks leave besides their rows' (which they go on from, unless they begin at position 0):
    `protocol.StateMetadata` on the device. places: of snapshots among `LayerStates`, behind those of rows."""

    snapshot_start: Tensor  # int32[C + 1]
    positions: Tensor  # int32[…]
    places: Tensor  # int32[…]
