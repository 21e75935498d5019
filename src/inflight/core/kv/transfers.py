"""Transfers: which copies of blocks the plan under construction asks for, and which are out.

Knows what a transfer holds: while it is out, one reference to each of its device blocks, so that nobody is given one of
them. Knows neither what is in the blocks nor what a transfer is for: whoever asks for one is called when it has ended.
Whether one ends within its step is a matter of its place: the host's memory is copied to and from within the step where
the executor is not asynchronous (a CPU), and then it has ended when its plan is made; folders and peers are beside the
steps everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.kv.block_pool import BlockPool
from inflight.core.types.plan import HOST, Transfer, TransferKind


class Transfers:
    def __init__(self, pool: BlockPool, keeps_content: Callable[[int], bool], asynchronous: bool):
        """keeps_content(block): whether a block that is held no more can still be found. asynchronous: whether
        transfers to and from the host go on beside the steps, too."""
        self.asynchronous = asynchronous
        self.out: dict[int, Transfer] = {}
        self._pool = pool
        self._keeps_content = keeps_content
        self._ended: dict[int, Callable[[bool], None]] = {}  # whom to call, by transfer_id
        self._asked: list[Transfer] = []
        self._last_transfer_id = 0

    def begin(
        self,
        kind: TransferKind,
        place: str,
        blocks: tuple[int, ...],
        remote_blocks: tuple[int, ...],
        ended: Callable[[bool], None],
    ) -> int:
        """Ask for one with the plan under construction; returns its transfer_id. ended(done) is called once."""
        transfer = Transfer(self.new_transfer_id(), kind, place, blocks, remote_blocks)
        self._asked.append(transfer)
        self._ended[transfer.transfer_id] = ended
        if self.is_beside(place):
            self.out[transfer.transfer_id] = transfer
            for block in blocks:
                self._pool.acquire(block)
        return transfer.transfer_id

    def is_beside(self, place: str) -> bool:
        """Whether transfers of this place go on beside the steps; otherwise they end within theirs."""
        return self.asynchronous or place != HOST

    def new_transfer_id(self) -> int:
        """The next number, for what else an executor does beside the steps, too."""
        self._last_transfer_id += 1
        return self._last_transfer_id

    def drain(self) -> tuple[Transfer, ...]:
        """Those of the plan that is finished: what is stored before what is loaded."""
        if not self._asked:
            return ()
        asked, self._asked = self._asked, []
        for transfer in asked:
            if not self.is_beside(transfer.tier):
                self._ended.pop(transfer.transfer_id)(True)
        return tuple(sorted(asked, key=lambda transfer: transfer.kind == "load"))

    @property
    def goes_on(self) -> bool:
        """Whether one is out whose end changes what the engine has. What is held for other engines does not: it ends
        when they have it."""
        return any(one.kind != "send" for one in self.out.values())

    def end_transfer(self, transfer_id: int, done: bool) -> None:
        """The executor has told of it; done: it did not fail."""
        transfer = self.out.pop(transfer_id)
        self._ended.pop(transfer_id)(done)
        self._pool.release(reversed(transfer.blocks), self._keeps_content)
