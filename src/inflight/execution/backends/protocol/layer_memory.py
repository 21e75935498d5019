"""Shapes of layers' keys and values in blocks, in numbers; a backend says how many bytes they take.
`models.parts.LayerState` is the shape of a state of fixed size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import force_setattr


class KVLayer(Struct, frozen=True):
    """One layer's keys and values of a token in the blocks of its KV group: for each head a key of `key_dim` values and
    a value of `value_dim`. value_dim 0: values are a part of the keys (latent attention: one head, of the compressed
    vector and the rotated key), and are not stored separately."""

    group: int
    kv_heads: int
    key_dim: int  # even
    value_dim: int

    @property
    def elements(self) -> int:
        """Return the numbers of one token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


class KVShape(Struct, frozen=True):
    """The shape of a block: one contiguous run of bytes, which holds B positions of every layer of one KV group, each
    layer at an offset of its own with heads and widths of its own, one after the other in the order of the layers. A
    block of any group takes the bytes of the largest, so that one pool serves all.

    layers: of each layer of the model; None for one that takes no place in any block: it keeps a state of fixed size
    instead, or reads what an earlier layer has written.

    quantized: in int8, with a scale for each position and head of the keys, and of the values if there are any, by the
    rule of `int8.py` from what `act` would hold. Attention then multiplies whole numbers: queries are rounded once
    more, to 16 bits with a scale of their own, and so are probabilities (times the scales of their values), instead of
    to `act`. Where values are kept beside them, keys are held transformed (`channel_mixing`), and so are queries.

    is_fp8: of quantized ones, that they are in fp8 instead, with scales likewise, not transformed; for backends with
    `packs_fp8`.
    """

    block_size: int  # tokens per block, a multiple of 16
    layers: tuple[KVLayer | None, ...]
    quantized: bool = False
    is_fp8: bool = False
    groups: int = 0  # KV groups, counted from the layers

    def __post_init__(self) -> None:
        groups = 1 + max((one.group for one in self.layers if one is not None), default=0)
        force_setattr(self, "groups", groups)

    @classmethod
    def uniform(
        cls,
        layers: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        quantized: bool = False,
        groups: Sequence[int] = (),
    ) -> KVShape:
        """Return the shape of layers with equal heads and widths. groups: of each layer; none: one group of all."""
        return cls(
            block_size,
            tuple(KVLayer(group, kv_heads, head_dim, head_dim) for group in groups or [0] * layers),
            quantized,
        )

    def of(self, layer: int) -> KVLayer:
        """Return a layer's keys and values. Raises ValueError for a layer that has none in blocks."""
        found = self.layers[layer] if 0 <= layer < len(self.layers) else None
        if found is None:
            raise ValueError(f"layer {layer} is not in the KV cache")
        return found

    def layout(self, item_bytes: int) -> tuple[list[int], int]:
        """Return `offsets` of layers whose numbers take so many bytes each, and float32 scales where they are
        quantized."""

        def nbytes(layer: KVLayer) -> int:
            scales = 4 * layer.kv_heads * (2 if layer.value_dim else 1) if self.quantized else 0
            return self.block_size * (layer.elements * item_bytes + scales)

        return self.offsets(nbytes)

    def offsets(self, nbytes: Callable[[KVLayer], int]) -> tuple[list[int], int]:
        """Return where each layer begins in a block (0 for one without a place), and the bytes of a block. nbytes:
        returns the bytes of a layer's place in a block, as the backend holds it."""
        ends, found = [0] * self.groups, []
        for layer in self.layers:
            found.append(0 if layer is None else ends[layer.group])
            if layer is not None:
                ends[layer.group] += nbytes(layer)
        return found, max(ends)
