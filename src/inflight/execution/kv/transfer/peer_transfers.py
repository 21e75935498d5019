"""The exchange of one engine: sends and receives of its plans, carried out beside the steps.

Joins what is held for others, who gives it to them, and what is pulled from others; one place of transfers for the
executor. Knows how the places of transfers are written; requests are not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inflight.core.types.kv_transfer import KVExportStats, KVTransferOptions, export_of, is_of_peers, peer_of
from inflight.core.types.plan import EarlySend, Transfer, Transferred
from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer import nixl
from inflight.execution.kv.transfer.client import Pulls
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.exports import Exports
from inflight.execution.kv.transfer.nixl import NixlAgent, NixlUnusable
from inflight.execution.kv.transfer.server import Provider
from inflight.extras import pip_install
from inflight.peer_secret import PeerSecret

log = logging.getLogger(__name__)

HELD_SHARE = 0.5  # of all blocks, for peers; the oldest exports end first


class KVTransferError(RuntimeError):
    """The exchange cannot be opened as it is asked for; the sentence says why."""


class PeerTransfers:
    """A `PlaceTransfers` of an executor."""

    def __init__(
        self,
        options: KVTransferOptions,
        secret: PeerSecret,
        describe: Callable[[], KVDescription],
        memory: BlockMemory,
    ):
        """describe: what this engine is now: adapters come and go. memory: of its blocks. Raises KVTransferError."""
        held = int(HELD_SHARE * (len(memory.memory) // memory.block_bytes))
        self._exports = Exports(options.hold, held, memory.block_bytes)
        self.gives = options.is_producer
        agent = _agent(options, memory)
        self._pulls = Pulls(secret, describe, memory, timeout=options.timeout, transport=options.transport, agent=agent)
        self._provider = Provider(secret, describe, self._exports, memory, agent)
        if options.is_producer:
            try:
                self._provider.listen(options.host, options.port)
            except OSError as error:
                raise KVTransferError(
                    f"Peers cannot connect to {options.host}:{options.port} ({error.strerror or error}); give another "
                    "--kv-transfer-host or --kv-transfer-port."
                ) from None

    @property
    def address(self) -> tuple[str, int]:
        """Where peers connect; ("", 0): nowhere."""
        return self._provider.address

    @property
    def counts(self) -> PeerTransferCounts:
        pulled, given = self._pulls.counts, self._provider.counts
        return PeerTransferCounts(
            pulled.blocks, pulled.pulls, pulled.failed, pulled.seconds, given.blocks, given.failed
        )

    @property
    def export_stats(self) -> KVExportStats:
        """Blocks, by what became of them. In any thread."""
        return self._exports.export_stats()

    def serves(self, tier: str) -> bool:
        return is_of_peers(tier)

    # -- blocks that a step computes, on the thread that runs the steps ---------------------------------------------
    def computing(self, sends: Sequence[EarlySend]) -> None:
        """Note that the step that begins completes these blocks."""
        self._exports.computing((_export_id(one.tier), one.remote_blocks, one.blocks) for one in sends)

    def have(self, nbytes: int) -> None:
        """Note that the first `nbytes` of each of the step's blocks are computed."""
        self._exports.have(nbytes)

    def broken_off(self) -> None:
        """Discard the blocks of the current step, which was broken off."""
        self._exports.broken_off()

    # -- transfers --------------------------------------------------------------------------------------------------

    def begin(self, transfer: Transfer) -> None:
        if transfer.kind == "send":
            self._exports.add(transfer.transfer_id, _export_id(transfer.tier), transfer.remote_blocks, transfer.blocks)
        else:
            place = peer_of(transfer.tier)
            self._pulls.begin(transfer.transfer_id, place, transfer.remote_blocks, transfer.blocks)

    def poll(self) -> tuple[Transferred, ...] | None:
        given, pulled = self._exports.poll(), self._pulls.poll()
        if given is None and pulled is None:
            return None
        return (*(Transferred(transfer_id) for transfer_id in given or ()), *(pulled or ()))

    def when_wanted(self, report: Callable[[str], None]) -> None:
        """Call `report` with each export that a peer asks for before it has begun, in a thread of the exchange's."""
        self._exports.wanted = report

    def withdraw(self, export_id: str) -> None:
        """End an export, now or before it begins; waiting peers get an error. Called in any thread."""
        self._exports.withdraw(export_id)

    def abandon(self) -> None:
        """Whose blocks are whose is not known any more: all transfers end as soon as can be."""
        self._exports.abandon()
        self._pulls.abandon()

    def close(self) -> None:
        self._provider.close()
        self._exports.close()
        self._provider.join()
        self._pulls.close()


@dataclass(frozen=True, slots=True)
class PeerTransferCounts:
    """Blocks and pulls so far, this engine's own and those of its peers. pulled_seconds: of its own that ended well."""

    pulled_blocks: int
    pulls: int
    failed_pulls: int
    pulled_seconds: float
    given_blocks: int
    failed_gives: int


def _export_id(place: str) -> str:
    export_id = export_of(place)
    assert export_id is not None, "core writes these tiers"
    return export_id


def _agent(options: KVTransferOptions, memory: BlockMemory) -> NixlAgent | None:
    """NIXL's, where it is asked for, or is there. Raises KVTransferError where it was asked for and is not."""
    package = nixl.installed() if options.transport in ("auto", "nixl") else None
    if options.transport == "nixl" and package is None:
        raise KVTransferError(
            f"--kv-transport nixl needs NIXL, which is not installed; {pip_install('nixl')}, or leave the option out."
        )
    try:
        return None if package is None else NixlAgent(package, memory)
    except NixlUnusable as error:
        if options.transport == "nixl":
            raise KVTransferError(f"{error} --kv-transport auto does without.") from error
        log.warning("%s Blocks come through shared memory on one host, and by TCP between hosts.", error)
        return None
