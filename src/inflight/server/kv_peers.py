"""KV transfer parameters of calls and answers.

A prefill server answers with the address of the prompt's blocks and the id of their export; the router that calls both
passes them on to the decode server. A signature within the id proves that a peer has written it, so that no client can
make this server connect to an address of its choice.
"""

from __future__ import annotations

import logging
import time

import msgspec
from msgspec import Struct

from inflight.core.types.kv_transfer import KVTransfer, KVTransferOptions, PeerAddress
from inflight.peer_secret import ADDRESS, PeerSecret
from inflight.server.common.fields import KVTransferParams

_QUIET = 60.0  # seconds between two warnings

log = logging.getLogger(__name__)


class KVPeering(Struct, frozen=True):
    """An engine that transfers blocks with peers. host, port: at which they connect to it."""

    options: KVTransferOptions
    engine_id: str
    host: str
    port: int
    block_size: int
    tensor_parallel: int = 1


class KVPeers:
    def __init__(self, peering: KVPeering, secret: PeerSecret):
        self._peering, self._secret = peering, secret
        self._warned = -_QUIET

    def transfer(self, params: KVTransferParams, request_id: str, prompt_tokens: int) -> KVTransfer | None:
        """Return the KV transfer of the only request of a call; None: there is none."""
        options = self._peering.options
        give = (
            request_id if params.do_remote_decode and options.is_producer and prompt_tokens > self._block_size else ""
        )
        take = self._peer(params) if params.do_remote_prefill and options.is_consumer else None
        return KVTransfer(give, take) if give or take else None

    def shown(self, transfer: KVTransfer, prompt_tokens: int) -> bytes:
        """Return `kv_transfer_params` as JSON, for the answer of a call whose prompt is exported."""
        peering = self._peering
        exported = PeerAddress(peering.host, peering.port, transfer.give)
        blocks = (prompt_tokens - 1) // self._block_size
        return msgspec.json.encode(
            KVTransferParams(
                do_remote_decode=False,
                do_remote_prefill=True,
                remote_engine_id=peering.engine_id,
                remote_block_ids=list(range(blocks)),
                remote_host=peering.host,
                remote_port=peering.port,
                remote_request_id=self.signed(exported, peering.engine_id),
                tp_size=peering.tensor_parallel,
            )
        )

    def signed(self, address: PeerAddress, engine_id: str) -> str:
        """Return the id of an export with a signature of its address."""
        return f"{address.export_id}.{self._secret.signature(ADDRESS, *_signed(address, engine_id))}"

    @property
    def _block_size(self) -> int:
        return self._peering.block_size

    def _peer(self, params: KVTransferParams) -> PeerAddress | None:
        """Return the address of the prompt's blocks; None: no peer has written one."""
        if not params.remote_host or not params.remote_port or not params.remote_request_id:
            self._warn("kv_transfer_params name no remote_host, remote_port and remote_request_id")
            return None
        export_id, _, signature = params.remote_request_id.rpartition(".")
        address = PeerAddress(params.remote_host, params.remote_port, export_id)
        signed = _signed(address, params.remote_engine_id or "")
        if not export_id or not self._secret.signs(signature, ADDRESS, *signed):
            self._warn(
                f"kv_transfer_params name {params.remote_host[:64]}:{params.remote_port}, but not as a peer with this "
                "server's secret writes it"
            )
            return None
        return address

    def _warn(self, why: str) -> None:
        """Log that the prompt is computed here, once in a while."""
        if time.monotonic() - self._warned > _QUIET:
            self._warned = time.monotonic()
            log.warning("%s; prompts are computed here.", why)


def _signed(address: PeerAddress, engine_id: str) -> tuple[str, ...]:
    """Return what a signature is of."""
    return address.host, str(address.port), address.export_id, engine_id
