"""The peers' secret: its proofs and signatures, where it is read, and that it is never printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.peer_secret import VARIABLE, PeerSecret, PeerSecretError, read_peer_secret

SECRET = b"0123456789abcdef"


def test_a_proof_is_of_its_purpose_and_its_parts() -> None:
    secret = PeerSecret(SECRET)
    proof = secret.proof("one", b"ab", b"c")
    assert secret.proves(proof, "one", b"ab", b"c")
    assert not secret.proves(proof, "two", b"ab", b"c")
    assert not secret.proves(proof, "one", b"a", b"bc"), "where a part ends is part of it"
    assert not PeerSecret(b"another, as long").proves(proof, "one", b"ab", b"c")
    assert not secret.proves(b"", "one", b"ab", b"c")


def test_a_signature_is_a_short_proof() -> None:
    secret = PeerSecret(SECRET)
    signature = secret.signature("one", "ab", "c")
    assert secret.proof("one", b"ab", b"c").hex().startswith(signature) and len(signature) == 32
    assert secret.signs(signature, "one", "ab", "c")
    assert not secret.signs(signature, "one", "a", "bc")
    assert not secret.signs("ü", "one", "ab", "c") and not secret.signs("", "one", "ab", "c")


def test_it_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    proof = PeerSecret(SECRET).proof("one")
    assert read_peer_secret(file, {}).proves(proof, "one")
    assert read_peer_secret(None, {VARIABLE: " 0123456789abcdef "}).proves(proof, "one")


def test_errors_do_not_print_the_secret(tmp_path: Path) -> None:
    with pytest.raises(PeerSecretError, match="--kv-peer-secret-file"):
        read_peer_secret(None, {})
    with pytest.raises(PeerSecretError, match="cannot be read"):
        read_peer_secret(tmp_path / "nowhere", {})
    with pytest.raises(PeerSecretError, match="has 5 bytes, but takes 16") as short:
        read_peer_secret(None, {VARIABLE: "short"})
    assert "'short'" not in str(short.value)
    assert "0123" not in repr(PeerSecret(SECRET))
