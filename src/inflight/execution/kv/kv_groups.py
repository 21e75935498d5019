"""Divides a model's layers into KV groups, whose layers have blocks in common.

Layers of a group have the same window. Groups are chosen so that a block of any group needs about the same bytes; the
layers of a group may have different heads and widths (vLLM's hybrid KV cache manager groups layers that are alike).
`core.types.kv_blocks` says how many blocks a sequence then has.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.core.types.kv_blocks import max_blocks
from inflight.execution.backends.protocol import KVLayer
from inflight.models.parts import Mixer
from inflight.models.spec import ModelSpec

MAX_GROUPS = 16  # each is one more block table for every row
MAX_MEMORY_SHARE = 0.8  # of the memory of one group of all layers, for several groups
FEWER_GROUPS = 1.05  # times the least memory, for fewer groups


class KVGroups(Struct, frozen=True):
    """KV groups of a model.

    Attributes:
        windows: Of each group, in tokens; 0: all. Groups without a window come first.
        of_layer: Group of each layer; None: the layer has no keys and values in blocks.
    """

    windows: tuple[int, ...]
    of_layer: tuple[int | None, ...]


def kept(mixer: Mixer, group: int = 0) -> KVLayer | None:
    """Return the shape of a layer's keys and values of one token in its group's blocks; None: it has none."""
    return None if (kv := mixer.writes) is None else KVLayer(group, kv.heads, kv.key_dim, kv.value_dim)


def one_group(spec: ModelSpec) -> KVGroups:
    """Put all layers into one group, as if there were no windows. Layers of encoder-only input, which need nothing of
    other layers, all use the first layer's memory."""
    if spec.encoder_only:
        return KVGroups((0,), (0, *[None] * (len(spec.layers) - 1)))
    return KVGroups((0,), tuple(None if kept(layer.mixer) is None else 0 for layer in spec.layers))


def kv_groups(spec: ModelSpec, block_size: int, max_model_len: int) -> KVGroups:
    """Choose the groups with which a decoding sequence of `max_model_len` tokens takes least memory.

    Few groups are taken where more save little, and one without a window where windows save little."""
    if spec.encoder_only:
        return one_group(spec)
    sizes = [0 if (own := kept(layer.mixer)) is None else own.elements for layer in spec.layers]
    # A window as long as the longest sequence drops no token.
    windows = [layer.mixer.window if layer.mixer.window < max_model_len else 0 for layer in spec.layers]
    one = one_group(spec)

    def memory(groups: KVGroups) -> int:
        filled = [0] * len(groups.windows)
        for group, size in zip(groups.of_layer, sizes, strict=True):
            filled[group or 0] += size
        return max(filled) * max_blocks(max_model_len, block_size, groups.windows, 1)

    rooms = {count * size for size in set(sizes) if size for count in range(1, sizes.count(size) + 1)}
    several = [_divided(windows, sizes, room) for room in sorted(rooms) if room >= max(sizes)]
    several = [groups for groups in several if len(groups.windows) <= MAX_GROUPS]
    least = min(map(memory, several), default=0)
    few = min(
        (groups for groups in several if memory(groups) <= FEWER_GROUPS * least),
        key=lambda groups: (len(groups.windows), memory(groups)),
        default=one,
    )
    return few if memory(few) <= MAX_MEMORY_SHARE * memory(one) else one


def _divided(windows: list[int], sizes: list[int], room: int) -> KVGroups:
    """Divide layers with the same window into groups, in their order, of at most `room` elements of a token each."""
    found: list[int] = []  # window of each group
    of_layer: list[int | None] = [None] * len(windows)
    for window in sorted({window for window, size in zip(windows, sizes, strict=True) if size}):
        left = 0
        for layer, size in enumerate(sizes):
            if windows[layer] != window or not size:
                continue
            if size > left:
                found.append(window)
                left = room
            of_layer[layer] = len(found) - 1
            left -= size
    return KVGroups(tuple(found), tuple(of_layer))
