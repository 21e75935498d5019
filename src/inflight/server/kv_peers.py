"""KV transfer parameters of calls and answers: keys and values of other engines, and of this one.

A prefill server answers where the prompt's blocks are, and under which id; the router that calls both passes that
on to the decode server. A signature within the id proves that a peer has written it, so that no client can make this
server connect to an address of its choice; whether blocks are given, the peers settle between them. Knows parameters
and the secret, no sockets.
"""

from __future__ import annotations

import hmac
import logging
import time

import msgspec
from msgspec import Struct

from inflight.core.types.kv_transfer import KVTransfer, KVTransferOptions, PeerAddress
from inflight.peer_secret import PeerSecret
from inflight.server.common.fields import KVTransferParams

_PURPOSE = "kv-exchange address"
_SIGNATURE = 32  # hexadecimal digits
_QUIET = 60.0  # seconds between two warnings

log = logging.getLogger(__name__)


class KVPeering(Struct, frozen=True):
    """An engine among its peers. host, port: where these connect to it."""

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
        """Return `kv_transfer_params` as JSON, for the answer of a call whose prompt other engines take."""
        peering = self._peering
        blocks = (prompt_tokens - 1) // self._block_size
        return msgspec.json.encode(
            KVTransferParams(
                do_remote_decode=False,
                do_remote_prefill=True,
                remote_engine_id=peering.engine_id,
                remote_block_ids=list(range(blocks)),
                remote_host=peering.host,
                remote_port=peering.port,
                remote_request_id=self.signed(
                    PeerAddress(peering.host, peering.port, transfer.give), peering.engine_id
                ),
                tp_size=peering.tensor_parallel,
            )
        )

    def signed(self, place: PeerAddress, engine_id: str) -> str:
        """Return the id of an export, with a proof that a peer has said where it is."""
        return f"{place.export_id}.{self._signature(place, engine_id)}"

    @property
    def _block_size(self) -> int:
        return self._peering.block_size

    def _peer(self, params: KVTransferParams) -> PeerAddress | None:
        """Return where the prompt was computed; None where that is not said, or not by a peer."""
        if not params.remote_host or not params.remote_port or not params.remote_request_id:
            self._warn("kv_transfer_params name no remote_host, remote_port and remote_request_id")
            return None
        export_id, _, signature = params.remote_request_id.rpartition(".")
        place = PeerAddress(params.remote_host, params.remote_port, export_id)
        expected = self._signature(place, params.remote_engine_id or "")
        if not export_id or not _equal(signature, expected):
            self._warn(
                f"kv_transfer_params name {params.remote_host[:64]}:{params.remote_port}, but not as a peer with this "
                "server's secret writes it"
            )
            return None
        return place

    def _warn(self, why: str) -> None:
        """Warn the operator, once in a while, that the prompt is computed here."""
        if time.monotonic() - self._warned > _QUIET:
            self._warned = time.monotonic()
            log.warning("%s; prompts are computed here.", why)

    def _signature(self, place: PeerAddress, engine_id: str) -> str:
        signed = (place.host.encode(), str(place.port).encode(), place.export_id.encode(), engine_id.encode())
        return self._secret.proof(_PURPOSE, *signed).hex()[:_SIGNATURE]


def _equal(one: str, other: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
