"""What an engine and its clients in other processes say to each other: msgpack, each side checking types.

Knows shapes only. Requests and ends travel as core has them; log-probabilities as numbers side by side, since
there may be twenty to a token. Nothing here can name code.
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
    """The bytes are no message; the sentence says what is wrong with them."""


# -- to the engine ----------------------------------------------------------------------------------------------------


class Open(Struct, frozen=True, tag=True):
    """Take these requests in, all of them or none. stream: the client's number for them."""

    stream: int
    requests: tuple[Request, ...]


class Leave(Struct, frozen=True, tag=True):
    """Nobody reads that stream any more."""

    stream: int


# -- from the engine --------------------------------------------------------------------------------------------------


class Accepted(Struct, frozen=True, tag=True):
    stream: int


class Refused(Struct, frozen=True, tag=True):
    """A RequestRefused."""

    stream: int
    sentence: str
    retry_after: float | None
    field: str | None
    code: str | None


class Logprobs(Struct, frozen=True, array_like=True):
    """Of tokens in a row, with each one's alternatives: ids (int32) and log-probabilities (float32) as bytes."""

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
        """Raises ValueError where the lists do not fit each other."""
        tops = (TopLogprobs.of_bytes(*top) for top in self.tops)
        return tuple(TokenLogprob(*one) for one in zip(self.token_ids, self.logprobs, tops, strict=True))


class Scored(Struct, frozen=True, array_like=True):
    request_id: str
    logprobs: Logprobs


class Tokens(Struct, frozen=True, array_like=True):
    request_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: Logprobs | None
    finish: Finish | None
    cached_tokens: int = 0


class Happened(Struct, frozen=True, tag=True):
    """What has happened since the last one, of all of a client's requests. Of one request scores come before tokens,
    and its end comes last, so that nothing is lost by keeping the kinds apart."""

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
        """Raises MessageError."""
        try:
            events: list[Event] = [PromptScoredEvent(one.request_id, one.logprobs.tokens()) for one in self.scored]
            for one in self.tokens:
                logprobs = None if one.logprobs is None else one.logprobs.tokens()
                of_sample = (one.request_id, one.sample_index, one.token_ids)
                events.append(TokensEvent(*of_sample, logprobs, one.finish, one.cached_tokens))
        except ValueError as error:
            raise _damaged(error) from None
        return [*events, *self.pooled, *self.finished]


class Stopped(Struct, frozen=True, tag=True):
    """The engine works no more; the last message."""

    sentence: str


ToEngine = Open | Leave
FromEngine = Accepted | Refused | Happened | Stopped
Message = ToEngine | FromEngine

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises MessageError."""
    return _decoded(_to_engine.decode, data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Raises MessageError."""
    return _decoded(_from_engine.decode, data)


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> MessageError:
    return MessageError(f"A message between the engine and an API process is damaged: {error}.")
