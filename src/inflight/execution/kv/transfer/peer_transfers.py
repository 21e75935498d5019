"""Transfers of blocks with peers: the sends and receives of an engine's plans, carried out beside its steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inflight.core.types.kv_transfer import KVExportStats, KVTransferOptions, export_of, is_of_peers, peer_of
from inflight.core.types.plan import EarlySend, Transfer, Transferred
from inflight.execution.kv.block_memory import KVMemory
from inflight.execution.kv.transfer import nixl
from inflight.execution.kv.transfer.client import KVClient
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.exports import Exports, Key
from inflight.execution.kv.transfer.nixl import NixlAgent, NixlUnusable
from inflight.execution.kv.transfer.server import KVServer
from inflight.extras import pip_install
from inflight.peer_secret import PeerSecret

log = logging.getLogger(__name__)


class KVTransferError(RuntimeError):
    """KV transfer cannot be opened with these options; the sentence says why."""


@dataclass(frozen=True, slots=True)
class PeerTransferCounts:
    """Blocks and pulls so far. served_blocks: that peers have pulled."""

    pulled_blocks: int
    pulls: int
    failed_pulls: int
    served_blocks: int


class PeerTransfers:
    """The `TierTransfers` of peers."""

    def __init__(
        self,
        options: KVTransferOptions,
        secret: PeerSecret,
        describe: Callable[[], KVDescription],
        memory: KVMemory,
    ):
        """Open KV transfer.

        Args:
            options: Role, address and transport.
            secret: Of the peers.
            describe: Returns the description of this engine, whose adapters change.
            memory: Of its blocks.

        Raises:
            KVTransferError: The address or the transport cannot be used.
        """
        if options.transport == "shm":
            log.warning("--kv-transport shm means tcp now, which is as fast between processes of one machine.")
        self.is_producer = options.is_producer
        agent = _agent(options, memory)
        self._exports = Exports(options.hold, memory)
        self._server = KVServer(secret, describe, self._exports, agent)
        self._client = KVClient(secret, describe, memory, options.timeout, options.transport, agent)
        if options.is_producer:
            try:
                self._server.listen(options.host, options.port)
            except OSError as error:
                raise KVTransferError(
                    f"Peers cannot connect to {options.host}:{options.port} ({error.strerror or error}); give another "
                    "--kv-transfer-host or --kv-transfer-port."
                ) from None

    @property
    def address(self) -> tuple[str, int]:
        """Address at which peers connect; ("", 0): it exports nothing."""
        return self._server.address

    @property
    def counts(self) -> PeerTransferCounts:
        pulled = self._client.counts
        return PeerTransferCounts(pulled.blocks, pulled.pulls, pulled.failed, self._server.served_blocks)

    @property
    def export_stats(self) -> KVExportStats:
        """Exported blocks by outcome. Called in any thread."""
        return self._exports.export_stats()

    def serves(self, tier: str) -> bool:
        return is_of_peers(tier)

    # -- blocks that a step computes, on the thread that runs the steps ---------------------------------------------
    def begin_step(self, sends: Sequence[EarlySend]) -> None:
        """Note that a step begins, which completes these blocks."""
        self._exports.begin_step((_export_id(one.tier), _keys((), one.remote_blocks), one.blocks) for one in sends)

    def advance(self, nbytes: int) -> None:
        """Note that the first `nbytes` of each of the step's blocks are computed."""
        self._exports.advance(nbytes)

    def fail_step(self) -> None:
        """Discard the blocks of the current step, which failed."""
        self._exports.fail_step()

    # -- transfers --------------------------------------------------------------------------------------------------
    def begin(self, transfer: Transfer) -> None:
        keys = _keys(transfer.groups, transfer.remote_blocks)
        if transfer.kind == "send":
            self._exports.add(transfer.transfer_id, _export_id(transfer.tier), keys, transfer.blocks)
        else:
            self._client.begin(transfer.transfer_id, peer_of(transfer.tier), keys, transfer.blocks)

    def poll(self) -> tuple[Transferred, ...] | None:
        exported, pulled = self._exports.poll(), self._client.poll()
        if exported is None and pulled is None:
            return None
        return (*(Transferred(transfer_id) for transfer_id in exported or ()), *(pulled or ()))

    def when_wanted(self, report: Callable[[str], None]) -> None:
        """Call `report` with each export that a peer asks for before it has begun, in a thread of the server."""
        self._exports.wanted = report

    def withdraw(self, export_id: str) -> None:
        """End an export, now or before it begins; waiting peers get an error. Called in any thread."""
        self._exports.withdraw(export_id)

    def abandon(self) -> None:
        """End all transfers as soon as possible: their blocks have no owner any more."""
        self._exports.abandon()
        self._client.abandon()

    def close(self) -> None:
        self._server.close()
        self._exports.close()
        self._server.join()
        self._client.close()


def _keys(groups: Sequence[int], names: Sequence[int]) -> tuple[Key, ...]:
    return tuple(zip(groups or (0,) * len(names), names, strict=True))


def _export_id(tier: str) -> str:
    export_id = export_of(tier)
    assert export_id is not None, "core makes these tiers"
    return export_id


def _agent(options: KVTransferOptions, memory: KVMemory) -> NixlAgent | None:
    """Return NIXL's agent where it is asked for or available. Raises KVTransferError where it is not available."""
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
        log.warning("%s Blocks come by TCP.", error)
        return None
