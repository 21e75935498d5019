"""Messages between an engine and its clients in other processes: msgpack, whose types each side checks.

Requests and ends are core's types; log-probabilities are arrays of numbers, since there may be twenty per token. No
message can name code.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from inflight.core.types.events import Event, Finish, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import TokenLogprob, TopLogprobs

T = TypeVar("T")


class MessageError(ValueError):
    """The bytes are not a message; the sentence says why."""


# -- to the engine ----------------------------------------------------------------------------------------------------


class Open(Struct, frozen=True, tag=True):
    """Submit requests, all of them or none. stream: the client's number for them."""

    stream: int
    requests: tuple[Request, ...]


class Cancel(Struct, frozen=True, tag=True):
    """Abort the requests of a stream."""

    stream: int


# -- from the engine --------------------------------------------------------------------------------------------------


class Accepted(Struct, frozen=True, tag=True):
    """All requests of a stream were accepted."""

    stream: int


class Refused(Struct, frozen=True, tag=True):
    """None of a stream's requests was accepted: the fields of a RequestRefused."""

    stream: int
    sentence: str
    retry_after: float | None
    field: str | None
    code: str | None


class Logprobs(Struct, frozen=True, array_like=True):
    """Log-probabilities of successive tokens. tops: of each, alternatives' ids (int32) and log-probabilities
    (float32)."""

    token_ids: list[int]
    logprobs: list[float]
    tops: list[tuple[bytes, bytes]]

    @classmethod
    def of(cls, tokens: Iterable[TokenLogprob]) -> Logprobs:
        every = list(tokens)
        pairs = [tuple(zip(*one.top, strict=True)) or ((), ()) for one in every]
        tops = [(array("i", ids).tobytes(), array("f", values).tobytes()) for ids, values in pairs]
        return cls([one.token_id for one in every], [one.logprob for one in every], tops)

    def tokens(self) -> tuple[TokenLogprob, ...]:
        """Return them as core has them. Raises ValueError where the lists differ in length."""
        tops = (TopLogprobs.of_bytes(*top) for top in self.tops)
        return tuple(TokenLogprob(*one) for one in zip(self.token_ids, self.logprobs, tops, strict=True))


class Scored(Struct, frozen=True, array_like=True):
    """A PromptScoredEvent."""

    request_id: str
    logprobs: Logprobs


class Tokens(Struct, frozen=True, array_like=True):
    """A TokensEvent."""

    request_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: Logprobs | None
    finish: Finish | None
    cached_tokens: int = 0


class Happened(Struct, frozen=True, tag=True):
    """Events of all of a client's requests since the last message.

    For one request scores come before tokens and the end comes last, so that separate lists keep the order.
    """

    scored: list[Scored]
    pooled: list[PooledEvent]
    tokens: list[Tokens]
    finished: list[FinishedEvent]

    @classmethod
    def of(cls, events: Iterable[Event]) -> Happened:
        happened = cls([], [], [], [])
        for event in events:
            if isinstance(event, TokensEvent):
                packed = None if event.logprobs is None else Logprobs.of(event.logprobs)
                of_sample = (event.request_id, event.sample_index, event.token_ids)
                happened.tokens.append(Tokens(*of_sample, packed, event.finish, event.cached_tokens))
            elif isinstance(event, FinishedEvent):
                happened.finished.append(event)
            elif isinstance(event, PooledEvent):
                happened.pooled.append(event)
            else:
                happened.scored.append(Scored(event.request_id, Logprobs.of(event.logprobs)))
        return happened

    def events(self) -> list[Event]:
        """Return the events. Raises MessageError."""
        try:
            events: list[Event] = [PromptScoredEvent(one.request_id, one.logprobs.tokens()) for one in self.scored]
            for one in self.tokens:
                logprobs = None if one.logprobs is None else one.logprobs.tokens()
                of_sample = (one.request_id, one.sample_index, one.token_ids)
                events.append(TokensEvent(*of_sample, logprobs, one.finish, one.cached_tokens))
        except ValueError as error:
            raise _damaged(error) from None
        return [*events, *self.pooled, *self.finished]


class Failed(Struct, frozen=True, tag=True):
    """The requests of a stream have ended with an error; the engine goes on with others."""

    stream: int
    sentence: str


class Stopped(Struct, frozen=True, tag=True):
    """The engine has stopped; the last message."""

    sentence: str


ToEngine = Open | Cancel
FromEngine = Accepted | Refused | Happened | Failed | Stopped
Message = ToEngine | FromEngine

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Return a client's message. Raises MessageError."""
    return _decoded(_to_engine.decode, data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Return an engine's message. Raises MessageError."""
    return _decoded(_from_engine.decode, data)


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> MessageError:
    return MessageError(f"A message between the engine and an API process is damaged: {error}.")
