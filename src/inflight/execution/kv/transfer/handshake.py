"""The handshake: both sides prove that they know the secret, then the listener compares the two engines.

Before the other side has proved that it knows the secret, it receives nothing of an engine but the version of the
protocol.
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
from inflight.peer_secret import PeerSecret

SECONDS = 5.0  # for each answer
_CALLER, _LISTENER = "kv-exchange caller", "kv-exchange listener"
_LONGEST_INTRODUCTION = 1 << 20  # bytes: thousands of adapters


class PeerRefused(PeerError):
    """The peer is there, and does not exchange blocks with this engine: asking again makes no sense for a while."""


def call(channel: Channel, secret: PeerSecret, here: KVDescription, way: str, ways_data: bytes = b"") -> Welcome:
    """Run the handshake of the connecting side. Raises PeerError."""
    nonce = os.urandom(NONCE)
    channel.send(Hello(PROTOCOL, nonce), SECONDS)
    challenge = _answer(channel, MAX_UNKNOWN)
    if not isinstance(challenge, Challenge):
        raise PeerError(f"{channel.peer} did not answer with a challenge; is it an engine's --kv-transfer-port?")
    if not secret.proves(challenge.proof, _LISTENER, nonce, challenge.nonce):
        raise PeerRefused(f"{channel.peer} does not know this engine's secret; give both the same one.")
    proof = secret.proof(_CALLER, challenge.nonce, nonce)
    channel.send(Introduction(proof, here, way, ways_data), SECONDS)
    welcome = _answer(channel, _LONGEST_INTRODUCTION)
    if not isinstance(welcome, Welcome):
        raise PeerError(f"{channel.peer} did not answer with a welcome.")
    return welcome


def answer(channel: Channel, secret: PeerSecret, here: KVDescription) -> Introduction:
    """Run the handshake of the listening side, up to the welcome. Raises PeerError, and sends the refusal."""
    hello = channel.receive(SECONDS, MAX_UNKNOWN)
    if not isinstance(hello, Hello):
        raise PeerError(f"{channel.peer} did not say hello first.")
    if hello.protocol != PROTOCOL:
        _refuse(channel, f"The peer speaks version {PROTOCOL} of the exchange, not {hello.protocol}; run one version.")
    nonce = os.urandom(NONCE)
    channel.send(Challenge(nonce, secret.proof(_LISTENER, hello.nonce, nonce)), SECONDS)
    introduction = channel.receive(SECONDS, _LONGEST_INTRODUCTION)
    if not isinstance(introduction, Introduction):
        raise PeerError(f"{channel.peer} did not answer the challenge.")
    if not secret.proves(introduction.proof, _CALLER, nonce, hello.nonce):
        _refuse(channel, "The peers' secrets differ; give both the same one.")
    why = difference(introduction.description, here)
    if why is not None:
        _refuse(channel, why)
    return introduction


def _answer(channel: Channel, most: int) -> object:
    message = channel.receive(SECONDS, most)
    if isinstance(message, Refused):
        raise PeerRefused(f"{channel.peer} refuses: {message.why}")
    return message


def _refuse(channel: Channel, why: str) -> None:
    channel.send(Refused(why), SECONDS)
    raise PeerRefused(f"{channel.peer} was refused: {why}")
