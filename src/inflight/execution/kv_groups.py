"""KV groups: which layers of a model share their blocks' fate.

Layers that look equally far back go together, in groups of equally many, so that a block of any group has the same
bytes (as vLLM's hybrid KV cache manager has it). What a sequence then holds is `core.types.kv_groups`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from inflight.core.types.kv_groups import most_blocks
from inflight.models.spec import Attention, ModelSpec

MOST_GROUPS = 8  # each is one more table for every row
WORTH = 0.8  # share of the memory of one group of all layers that several must not exceed


@dataclass(frozen=True, slots=True)
class KVGroups:
    """windows: of each group, in tokens; 0 sees all; groups without one come first. of_layer: each layer's group, -1 of
    one that keeps no blocks. size: layers of a group; the last one of a kind may have fewer."""

    windows: tuple[int, ...]
    of_layer: tuple[int, ...]
    size: int


def kv_groups(spec: ModelSpec, block_size: int, max_model_len: int) -> KVGroups:
    """The division under which a decoding sequence of `max_model_len` tokens takes least memory. One group of all
    layers, which keeps everything, where windows do not save much, or layers' blocks differ in more than windows."""
    mixers = [layer.mixer for layer in spec.layers]
    keeps = [isinstance(mixer, Attention) for mixer in mixers]
    one = KVGroups((0,), tuple(0 if keep else -1 for keep in keeps), sum(keeps))
    shapes = {(one.kv_heads, one.head_dim) for one in mixers if isinstance(one, Attention)}
    if len(shapes) != 1 or not all(keeps):
        return one
    # What no window hides from anybody is kept.
    windows = [mixer.window if mixer.window < max_model_len else 0 for mixer in mixers if isinstance(mixer, Attention)]
    sizes = range(1, len(windows) + 1)
    several = [found for size in sizes if len((found := _divided(windows, size)).windows) <= MOST_GROUPS]

    def memory(groups: KVGroups) -> int:
        return groups.size * most_blocks(max_model_len, block_size, groups.windows, 1)

    best = min(several, key=lambda groups: (memory(groups), len(groups.windows)))
    return best if memory(best) <= WORTH * memory(one) else one


def _divided(windows: list[int], size: int) -> KVGroups:
    """Into groups of at most `size` layers with the same window."""
    first: dict[int, int] = {}  # group of each window
    found: list[int] = []
    for window in sorted(set(windows)):
        first[window] = len(found)
        found += [window] * ceil(windows.count(window) / size)
    of_layer = [first[window] + windows[:layer].count(window) // size for layer, window in enumerate(windows)]
    return KVGroups(tuple(found), tuple(of_layer), size)
