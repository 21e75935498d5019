"""The peer of a request: another engine that has computed its prompt, or is about to, as a source of blocks.

Knows how blocks are named to peers; asks nobody. What the request says is believed as far as a transfer: if the peer
does not have the blocks, the transfer fails, and they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inflight.core.types.kv_blocks import KVMatch, SharedRoot, block_hash, root_hash
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter

Identity = Callable[[Adapter | None], bytes]  # of the model, how it computes, and an adapter's files


class PeerSource:
    """A `KVSource`."""

    def __init__(self, block_size: int, identity: Identity):
        self._size, self._identity = block_size, identity

    def match(self, request: Request, root: SharedRoot, token_ids: Sequence[int], held: int) -> KVMatch | None:
        """All of the prompt, whatever that takes: it is computed there for this request."""
        if request.kv_transfer is None or request.kv_transfer.take is None:
            return None
        blocks = min(handed_blocks(request, self._size), len(token_ids) // self._size)
        if blocks <= held:
            return None
        name, names = root_hash(root, self._identity(root.adapter)), []
        for start in range(0, blocks * self._size, self._size):
            name = block_hash(name, token_ids[start : start + self._size])
            names.append(int.from_bytes(name))
        return KVMatch("receive", request.kv_transfer.take.tier, tuple(names[held:]), always=True)


def handed_blocks(request: Request, block_size: int) -> int:
    """Of a prompt, those that are handed over: whole ones before its last token, from which the next is drawn."""
    return (len(request.prompt_token_ids) - 1) // block_size
