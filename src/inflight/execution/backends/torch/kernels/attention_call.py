"""One call of the operation `attention`, as the launchers of its kernels see it.

Derives kernels' arguments from a call, and the parts in which they take a key; not what they do with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from torch import Tensor

from inflight.execution.backends.torch.kernels.attention_tiles import padded
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors

Choice = TypeVar("Choice")


class AttentionCall(NamedTuple):
    q: Tensor  # act[T, H·D]
    cached: LayerKV
    scale: float
    window: int
    soft_cap: float
    sinks: Tensor | None
    causal: bool
    pass_: PassTensors
    out: Tensor  # act[T, H·M]
    position_bias: Tensor | None = None  # float32[H · (2·L + 63)], of encoder-only input alone

    @property
    def kv_heads(self) -> int:
        return self.cached.keys.shape[2]

    @property
    def group(self) -> int:
        """Query heads of a key/value head."""
        return self.q.shape[1] // (self.kv_heads * self.cached.keys.shape[3])

    @property
    def chunks(self) -> int:
        return self.pass_.rows.shape[0]

    @property
    def value_dim(self) -> int:
        return self.out.shape[1] // (self.kv_heads * self.group)

    def by_key_bytes(self, table: Mapping[int, Choice]) -> Choice:
        """Return the first entry whose key is no less than the bytes of a key as it is multiplied, or the last."""
        taken = self.cached.keys.shape[3] * self.q.element_size()
        return table[next((most for most in table if taken <= most), max(table))]

    def memory(self) -> tuple[Tensor | int | None, ...]:
        """Keys, values and scales, and how far a block of numbers and one of scales are from the next."""
        _, keys, values, key_scales, value_scales = self.cached
        assert values is None or values.stride(0) == keys.stride(0), "they lie in the same blocks"
        return (
            keys,
            values,
            key_scales,
            value_scales,
            keys.stride(0),
            0 if key_scales is None else key_scales.stride(0),
        )

    def chunk_tensors(self) -> tuple[Tensor | int, ...]:
        """Return the tensors that say which tokens and positions a chunk has, and the group's block tables with their
        stride."""
        pass_ = self.pass_
        tables = pass_.block_tables[self.cached.group]
        return pass_.query_start, pass_.context_len, pass_.rows, tables, tables.stride(0)

    def constants(self) -> dict[str, int | float]:
        width = self.cached.keys.shape[3]
        first = key_split(width) if self.cached.values is not None else self.value_dim
        return {
            "CAUSAL": self.causal,
            # Back, a position's own among them; where texts are whole, as many ahead.
            "WINDOW": self.window + 1 if self.window and not self.causal else self.window,
            "SOFT_CAP": float(self.soft_cap),
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "FIRST": first,
            "REST": width - first,
            "VALUE": self.value_dim,
            "BLOCK": self.pass_.block_size,
        }


def key_split(width: int) -> int:
    """How many of a key's numbers are its first part, so that the least is filled up."""
    first = 1 << (width.bit_length() - 1)
    rest = width - first
    return first if rest and padded(first) + padded(rest) < padded(width) else width
