"""The secret that engines which hand over keys and values share: who knows it is a peer.

Knows how knowledge of it is proved without telling it, and how what one engine has written is recognised by another, in
constant time. Does not know what is exchanged. Standard library only.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from pathlib import Path

SHORTEST, NEW_BYTES, LONGEST = 16, 64, 4096  # bytes
VARIABLE = "INFLIGHT_KV_PEER_SECRET"
_HOW = "`openssl rand -hex 32 > FILE` makes one; give all peers the same file."


class PeerSecretError(ValueError):
    """There is no secret, or none that can be used; the sentence says why."""


class PeerSecret:
    def __init__(self, secret: bytes):
        """Raises PeerSecretError for one that is too short to be one."""
        if not SHORTEST <= len(secret) <= LONGEST:
            raise PeerSecretError(
                f"The peers' secret has {len(secret)} bytes, but takes {SHORTEST} to {LONGEST}; {_HOW}"
            )
        self._secret = secret

    @classmethod
    def new(cls) -> PeerSecret:
        """That nobody else knows."""
        return cls(os.urandom(NEW_BYTES))

    def __repr__(self) -> str:
        return "PeerSecret()"  # and no more, wherever it is shown

    def proof(self, purpose: str, *parts: bytes) -> bytes:
        """What only peers can make of these. purpose: so that a proof of one thing is none of another."""
        told = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose.encode(), *parts))
        return hmac.digest(self._secret, told, "sha256")

    def proves(self, proof: bytes, purpose: str, *parts: bytes) -> bool:
        return hmac.compare_digest(proof, self.proof(purpose, *parts))


def read_peer_secret(file: Path | None, environment: Mapping[str, str] = os.environ) -> PeerSecret:
    """From a file, without the white space around it; else from the environment. Raises PeerSecretError."""
    if file is None:
        if not environment.get(VARIABLE, "").strip():
            raise PeerSecretError(
                f"Peers that hand over keys and values share a secret, and there is none: give --kv-peer-secret-file "
                f"FILE, or set {VARIABLE}. {_HOW}"
            )
        return PeerSecret(environment[VARIABLE].strip().encode())
    try:
        with file.open("rb") as opened:
            return PeerSecret(opened.read(LONGEST + 1).strip())
    except OSError as error:
        raise PeerSecretError(
            f"--kv-peer-secret-file {file} cannot be read: {error.strerror or error}; check the path and its "
            "permissions."
        ) from None
