"""The prefix cache: from token content to the block that holds its keys and values.

Exact: a block is found by its own tokens and by the identity of the block before it, compared token by token, so that
no hash collision can ever mix content. Each cached block is a node; its key is (parent node, tokens); the root of a
chain is the request's salt. Node numbers are never used twice, so that a chain whose middle was evicted cannot be
entered again. Knows nothing of holders or eviction order (`blocks`).
Compare: automatic prefix caching in vLLM (hash chains) and RadixAttention (arXiv 2312.07104, a radix tree).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

Node = Hashable


class PrefixCache:
    def __init__(self, block_size: int):
        self._block_size = block_size
        self._found: dict[tuple[Node, tuple[int, ...]], tuple[int, int]] = {}  # key → (node, block)
        self._keys: dict[int, tuple[Node, tuple[int, ...]]] = {}  # block → its key
        self._last_node = 0

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def match(self, root: Node, tokens: Sequence[int], most: int) -> tuple[list[int], Node]:
        """The longest chain of cached blocks for `tokens`, at most `most` blocks, and the node where it ends."""
        blocks: list[int] = []
        node = root
        size = self._block_size
        for end in range(size, most * size + 1, size):
            hit = self._found.get((node, tuple(tokens[end - size : end])))
            if hit is None:
                break
            node = hit[0]
            blocks.append(hit[1])
        return blocks, node

    def publish(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """Make a full block findable; returns the node to chain the next one to.

        When the same content is cached already, that block stays the findable one and `block` remains private."""
        key = (parent, tokens)
        hit = self._found.get(key)
        if hit is not None:
            return hit[0]
        self._last_node += 1
        self._found[key] = (self._last_node, block)
        self._keys[block] = key
        return self._last_node

    def drop(self, block: int) -> None:
        """The block lost its content."""
        del self._found[self._keys.pop(block)]

    def clear(self) -> None:
        self._found.clear()
        self._keys.clear()
