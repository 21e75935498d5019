"""Where keys and values may lie beyond the device and its host, in a folder or with a peer: what core asks of them.

A source is asked what it has behind the blocks of a chain that are found already, and says by which numbers it knows
that; a transfer of its place then brings it. Sources answer at once, from what they have in memory: they read no file
and call nobody. What they say may be wrong by the time that it is brought: then the transfer fails, and what it should
have brought is computed. Places other than HOST are beside the steps on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from inflight.core.types.cache_changes import SharedRoot
from inflight.core.types.request import Request


class Continuation(Struct, frozen=True):
    """Blocks that a source has, one behind the other. kind, place, remote_blocks: as in `Transfer`. always: they are
    brought whatever that takes, as what a peer has computed for this very request; otherwise where computing them would
    take longer."""

    kind: Literal["load", "receive"]
    place: str
    remote_blocks: tuple[int, ...]
    always: bool = False


class BlockSource(Protocol):
    def continuation(
        self, request: Request, root: SharedRoot, token_ids: Sequence[int], held: int
    ) -> Continuation | None:
        """What it has behind the first `held` blocks of these tokens, which are whole blocks; None: nothing.

        root: with whom the chain is shared. Nothing that was kept under another root may be named."""


class BlockSink(Protocol):
    """Where blocks are kept beyond the device, for later and perhaps for others. Answers at once, as sources do."""

    place: str

    def name(self, before: bytes | SharedRoot, token_ids: Sequence[int]) -> bytes | None:
        """Of a block behind the one of that name, or the first of its root, `remote_blocks` of it when it is read as a
        number; None: chains of this root are not kept, or not yet."""

    def wants(self, name: bytes) -> bool:
        """Whether it is to be stored: it is not there, nor on its way, and something can be written."""
