"""Queries, keys and values that are to be normed, rotated and written, of random numbers: each kind that models have.

Knows shapes and how tensors lie; not what a rotation is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.protocol import AttentionMetadata, RopeTable
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors, RopeTensors

from ..material import Array, metadata_of, normal

Norm = Literal["none", "head", "all"]
BLOCKS, BLOCK_SIZE, POSITIONS = 9, 16, 64
CHUNKS = [(14, 3, [3, 8]), (0, 1, [5]), (47, 1, [7, 1, 4])]  # start, length, blocks
EPS = 1e-5
KINDS = {"act": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Rotation:
    """written: 2 for keys and values, 1 for keys that are values, 0 for queries alone. rotated: numbers of a head."""

    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    rotated: int = 16
    q_norm: Norm = "none"
    k_norm: Norm = "none"
    v_norm: bool = False
    norms_last: bool = False
    scales_queries: bool = False
    written: int = 2

    @property
    def table(self) -> RopeTable | None:
        return rope_table(self.rotated, self.scales_queries) if self.rotated else None

    @property
    def norms(self) -> tuple[Array | None, Array | None, Array | None]:
        """Hold queries, keys and values."""
        return (
            _weight(5, self.q_norm, self.heads, self.width),
            _weight(6, self.k_norm, self.kv_heads, self.width),
            _weight(7, "head" if self.v_norm else "none", 1, self.width),
        )

    def qkv(self, tokens: int) -> Array:
        return 3 * normal(4, tokens, (self.heads + self.written * self.kv_heads) * self.width)


ROTATIONS = [
    Rotation(),
    Rotation(rotated=0),
    Rotation(rotated=4, width=20, kv_heads=1),
    Rotation(heads=5, kv_heads=5, width=48, rotated=12, q_norm="head", k_norm="head", scales_queries=True),
    Rotation(heads=6, kv_heads=3, q_norm="all", k_norm="all"),
    Rotation(heads=6, kv_heads=1, width=10, rotated=10, q_norm="all", k_norm="head"),
    Rotation(q_norm="head", k_norm="head", norms_last=True, scales_queries=True),
    Rotation(q_norm="head", k_norm="head", v_norm=True, written=1),
    Rotation(q_norm="head", written=0),
    Rotation(heads=3, kv_heads=3, width=512, rotated=128, k_norm="head"),  # more numbers than one program has
    Rotation(heads=3, kv_heads=2, width=512, rotated=64, q_norm="all", k_norm="all"),  # unless one norm is of them
]


def rope_table(rotated: int, scales_queries: bool = False) -> RopeTable:
    """No cosines: what is mixed up is seen."""
    cos, sin = normal(1, POSITIONS, rotated // 2), normal(2, POSITIONS, rotated // 2)
    return RopeTable(cos, sin, normal(3, POSITIONS) if scales_queries else None)


def _weight(seed: int, norm: Norm, heads: int, width: int) -> Array | None:
    return None if norm == "none" else normal(seed, width if norm == "head" else heads * width)


def on(device: torch.device, x: Array | None) -> Tensor | None:
    return None if x is None else torch.from_numpy(x.copy()).to(device)


def rope_on(device: torch.device, table: RopeTable | None) -> RopeTensors | None:
    if table is None:
        return None
    q_scale = None if table.q_scale is None else torch.from_numpy(table.q_scale).to(device)
    return RopeTensors(torch.from_numpy(table.cos).to(device), torch.from_numpy(table.sin).to(device), q_scale)


def metadata(count: int = len(CHUNKS)) -> AttentionMetadata:
    """Take the first so many chunks."""
    return metadata_of(CHUNKS[:count])


def pass_on(device: torch.device, where: AttentionMetadata) -> PassTensors:
    """Chunk c is of slot 2 · c + 1; of two groups, the layers are of the second."""
    chunks, width = len(where.context_len), where.block_tables.shape[2]
    tables = np.full((2, 2 * chunks + 2, width + 1), 1 << 30, np.int32)
    tables[1, 1 : 2 * chunks : 2, :width] = where.block_tables[0]
    lengths = np.diff(where.query_start)
    arrays = [where.positions, np.repeat(np.arange(chunks), lengths), 2 * np.arange(chunks) + 1]
    arrays += [where.query_start, where.context_len, tables]
    return PassTensors(
        torch.zeros(len(where.positions), dtype=torch.int32, device=device),
        *(torch.from_numpy(each.astype(np.int32)).to(device) for each in arrays),
        BLOCK_SIZE,
        int(lengths.max(initial=0)),
        POSITIONS,
    )


def layer_on(device: torch.device, act: torch.dtype, held: str, kv_heads: int, key_dim: int, value_dim: int) -> LayerKV:
    """Make a cache of zeros, with numbers of other layers between its blocks."""
    sizes, kind = (BLOCKS, BLOCK_SIZE, kv_heads), KINDS[held]

    def numbers(width: int) -> Tensor:
        memory = torch.zeros(BLOCKS, BLOCK_SIZE * kv_heads * width + 32, dtype=kind or act, device=device)
        return memory[:, 16:-16].view(*sizes, width)

    def scales() -> Tensor | None:
        return None if kind is None else torch.zeros(sizes, device=device)

    if not value_dim:
        return LayerKV(1, numbers(key_dim), None, scales())
    return LayerKV(1, numbers(key_dim), numbers(value_dim), scales(), scales())
