"""Authentication of peers by the secret that they share: proofs of it, signatures with it, and where it is read.

Engines that transfer keys and values prove it to each other when they connect, and servers sign with it the addresses
that they give to clients. Standard library only.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from pathlib import Path

# Purposes of proofs, which make a proof of one invalid for another.
CLIENT, SERVER, ADDRESS = "kv-exchange caller", "kv-exchange listener", "kv-exchange address"

MIN_BYTES, NEW_BYTES, MAX_BYTES = 16, 64, 4096
VARIABLE = "INFLIGHT_KV_PEER_SECRET"
_SIGNATURE = 32  # hexadecimal digits
_HOW = "`openssl rand -hex 32 > FILE` makes one; give all peers the same file."


class PeerSecretError(ValueError):
    """The secret is missing or unusable; the sentence says why."""


class PeerSecret:
    def __init__(self, secret: bytes):
        """Raises PeerSecretError for one that is too short or too long."""
        if not MIN_BYTES <= len(secret) <= MAX_BYTES:
            raise PeerSecretError(
                f"The peers' secret has {len(secret)} bytes, but takes {MIN_BYTES} to {MAX_BYTES}; {_HOW}"
            )
        self._secret = secret

    @classmethod
    def new(cls) -> PeerSecret:
        return cls(os.urandom(NEW_BYTES))

    def __repr__(self) -> str:
        return "PeerSecret()"  # never the secret, wherever it is printed

    def proof(self, purpose: str, *parts: bytes) -> bytes:
        """Return a proof, for these parts, that only a peer can make."""
        content = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose.encode(), *parts))
        return hmac.digest(self._secret, content, "sha256")

    def proves(self, proof: bytes, purpose: str, *parts: bytes) -> bool:
        """Return whether a proof is a peer's, in a time that does not depend on where it differs."""
        return hmac.compare_digest(proof, self.proof(purpose, *parts))

    def signature(self, purpose: str, *parts: str) -> str:
        """Return a short proof in hexadecimal digits."""
        return self.proof(purpose, *(part.encode() for part in parts)).hex()[:_SIGNATURE]

    def signs(self, signature: str, purpose: str, *parts: str) -> bool:
        """Return whether a signature is a peer's."""
        return hmac.compare_digest(signature.encode(), self.signature(purpose, *parts).encode())


def read_peer_secret(file: Path | None, environment: Mapping[str, str] = os.environ) -> PeerSecret:
    """Read the secret from a file, else from the environment, without white space around it. Raises PeerSecretError."""
    if file is None:
        if not environment.get(VARIABLE, "").strip():
            raise PeerSecretError(
                f"Peers that transfer keys and values share a secret, and there is none: give --kv-peer-secret-file "
                f"FILE, or set {VARIABLE}. {_HOW}"
            )
        return PeerSecret(environment[VARIABLE].strip().encode())
    try:
        with file.open("rb") as opened:
            return PeerSecret(opened.read(MAX_BYTES + 1).strip())
    except OSError as error:
        raise PeerSecretError(
            f"--kv-peer-secret-file {file} cannot be read: {error.strerror or error}; check the path and its "
            "permissions."
        ) from None
