"""Handshake: both peers prove that they know the secret, then the server compares the two engines.

Before the other side has proved that it knows the secret, it receives nothing of an engine but the protocol's version.
"""

from __future__ import annotations

import os

from inflight.execution.kv.transfer.description import KVDescription, difference
from inflight.execution.kv.transfer.wire import (
    MAX_UNKNOWN,
    NONCE,
    PROTOCOL,
    Challenge,
    Channel,
    Hello,
    Introduction,
    PeerError,
    Refused,
    Welcome,
)
from inflight.peer_secret import CLIENT, SERVER, PeerSecret

SECONDS = 5.0  # for each answer
_MAX_INTRODUCTION = 1 << 20  # bytes: thousands of adapters


class PeerRefused(PeerError):
    """The peer transfers no blocks with this engine; asking again makes no sense for a while."""


def introduce(channel: Channel, secret: PeerSecret, here: KVDescription, transport: str) -> Welcome:
    """Run the handshake of the client. Raises PeerError."""
    nonce = os.urandom(NONCE)
    channel.send(Hello(PROTOCOL, nonce), SECONDS)
    challenge = _answer(channel, MAX_UNKNOWN)
    if not isinstance(challenge, Challenge):
        raise PeerError(f"{channel.peer} did not answer with a challenge; is it an engine's --kv-transfer-port?")
    if not secret.proves(challenge.proof, SERVER, nonce, challenge.nonce):
        raise PeerRefused(f"{channel.peer} does not know this engine's secret; give both the same one.")
    channel.send(Introduction(secret.proof(CLIENT, challenge.nonce, nonce), here, transport), SECONDS)
    welcome = _answer(channel, _MAX_INTRODUCTION)
    if not isinstance(welcome, Welcome):
        raise PeerError(f"{channel.peer} did not answer with a welcome.")
    return welcome


def check(channel: Channel, secret: PeerSecret, here: KVDescription) -> str:
    """Run the handshake of the server, up to the welcome. Return the transport that the client wants.

    Raises:
        PeerError: The client is refused, which is sent to it, or lost.
    """
    hello = channel.receive(SECONDS, MAX_UNKNOWN)
    if not isinstance(hello, Hello):
        raise PeerError(f"{channel.peer} did not say hello first.")
    if hello.protocol != PROTOCOL:
        _refuse(channel, f"The peer speaks version {PROTOCOL} of the exchange, not {hello.protocol}; run one version.")
    nonce = os.urandom(NONCE)
    channel.send(Challenge(nonce, secret.proof(SERVER, hello.nonce, nonce)), SECONDS)
    introduction = channel.receive(SECONDS, _MAX_INTRODUCTION)
    if not isinstance(introduction, Introduction):
        raise PeerError(f"{channel.peer} did not answer the challenge.")
    if not secret.proves(introduction.proof, CLIENT, nonce, hello.nonce):
        _refuse(channel, "The peers' secrets differ; give both the same one.")
    why = difference(introduction.description, here)
    if why is not None:
        _refuse(channel, why)
    return introduction.transport


def _answer(channel: Channel, max_bytes: int) -> object:
    message = channel.receive(SECONDS, max_bytes)
    if isinstance(message, Refused):
        raise PeerRefused(f"{channel.peer} refuses: {message.why}")
    return message


def _refuse(channel: Channel, why: str) -> None:
    channel.send(Refused(why), SECONDS)
    raise PeerRefused(f"{channel.peer} was refused: {why}")
