"""What an endpoint's serializer is asked, and what it is told.

Knows no wire format. `ResponseBuilder` follows the engine's events and asks; what the answer looks like, each
endpoint's own file knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from inflight.core.types.events import Finish
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.answers import ParsedAnswer
from inflight.frontend.outputs import CompletionOutput, OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta
from inflight.server.call import Call
from inflight.server.errors import ApiError
from inflight.server.logprobs import TokenNames


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, so far. cached_tokens: of prompts that have a token. output_tokens: of everything that was
    drawn, shown or not; reasoning_tokens are among them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True)
class Change:
    """What is new of one choice: folded from everything that happened since its last frame.

    collector: of its prompt. begins: nothing was told of this choice before. text: as it was drawn; deltas: the same
    told apart, where the call's answers are parsed. logprobs: of the tokens, of parsed answers those of the content.
    """

    index: int
    collector: OutputCollector
    begins: bool = False
    text: str = ""
    deltas: list[AnswerDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of an answer that is whole. answer: what it says, told apart, where the call's answers are parsed."""

    index: int
    collector: OutputCollector
    output: CompletionOutput
    answer: ParsedAnswer | None


class AnswerSerializer(Protocol):
    """Of one call. What is written is JSON for whole answers, server-sent events for streams."""

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames): ...

    @property
    def alive(self) -> bytes:
        """A sign of life while there is no news."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer, once all has finished."""

    def frames(self, changes: Sequence[Change], before: Usage, after: Usage, ended: bool) -> bytes:
        """What these changes add; nothing where they show nothing. before, after: usage without and with them. ended:
        all has finished with them."""

    def end(self, usage: Usage) -> bytes:
        """What comes when all has finished."""

    def failed(self, error: ApiError) -> bytes:
        """The stream ends in an error, whose status is told by now."""


@runtime_checkable
class KeepableSerializer(AnswerSerializer, Protocol):
    """Of an endpoint whose answers can be stored."""

    def kept(self, usage: Usage) -> bytes:
        """What is stored of a stream, once all has finished: what `whole` would have said. Asked before `end`, which
        says the same."""
