"""Answers to calls, folded from the engine's events, whole or frame by frame; and the envelope of OpenAI's.

Not streaming is streaming, collected. The form of an answer is its API's serializer alone, which is given choices and
changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.answers import ParsedAnswer
from inflight.frontend.outputs import CompletionOutput, OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta
from inflight.server.common.logprobs import TokenNames, encode
from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError, invalid


class TokenUsage(Struct, frozen=True, gc=False):
    """Tokens of a call so far.

    Attributes:
        output_tokens: Of everything that was drawn, shown or not; reasoning_tokens are among them.
        cached_tokens: Of prompts that have a token.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


_NO_USAGE = TokenUsage(0, 0)


class Change(Struct, gc=False):
    """The news of one choice since its last frame.

    Attributes:
        collector: Of its prompt.
        begins: It has no frame yet.
        text: As it was drawn.
        deltas: The same as content, reasoning and calls, where the call's answers are parsed.
        logprobs: Of the tokens; of parsed answers those of the content.
    """

    index: int
    collector: OutputCollector
    begins: bool = False
    text: str = ""
    deltas: list[AnswerDelta] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish: Finish | None = None


class Choice(Struct, frozen=True):
    """One choice of a whole answer. answer: its content, reasoning and calls, where the call's answers are parsed."""

    index: int
    collector: OutputCollector
    output: CompletionOutput
    answer: ParsedAnswer | None


class AnswerSerializer(Protocol):
    """Writes the answer to one call: JSON for whole answers, server-sent events for streams."""

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames): ...

    @property
    def alive(self) -> bytes:
        """Return a sign of life for a stream without news."""

    @property
    def shows_usage(self) -> bool:
        """Return whether the next frames need the usage, which is not counted otherwise."""

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        """Return the answer, once all choices have finished."""

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        """Return what these changes add. before, after: usage without and with them. ended: all has finished."""

    def end(self, usage: TokenUsage) -> bytes:
        """Return the last frames, when all has finished."""

    def failed(self, error: ApiError) -> bytes:
        """Return the last frames of a stream that ends in an error."""


@runtime_checkable
class KeepableSerializer(AnswerSerializer, Protocol):
    """A serializer of answers that can be stored."""

    def kept(self, usage: TokenUsage) -> bytes:
        """Return what is stored of a finished stream: the whole answer. Called before `end`, which has the same."""


class ResponseBuilder:
    def __init__(self, call: Call, collectors: Mapping[str, OutputCollector], names: TokenNames):
        """collectors: of the call's requests, by id, in their order."""
        self._call = call
        self._collectors = collectors
        self._first_index = {request_id: number * call.n for number, request_id in enumerate(collectors)}
        self._begun: set[int] = set()  # choices that have a frame
        self._ended: set[int] = set()  # choices whose last frame is made
        self._running = len(collectors)  # prompts whose last event has not come
        self._has_scores = any(one.request.params.prompt_logprobs is not None for one in collectors.values())
        self._prompt_tokens = sum(len(one.request.prompt_token_ids) for one in collectors.values())
        from inflight.server.registry import serializer_of  # here: its entries import this module

        self._serializer = serializer_of(call.kind)(call, list(collectors.values()), names)

    @property
    def output_tokens(self) -> int:
        """Return the tokens of everything that was drawn, shown or not."""
        return sum(one.output_tokens for one in self._collectors.values())

    @property
    def collectors(self) -> list[OutputCollector]:
        return list(self._collectors.values())

    @property
    def has_line(self) -> bool:
        """Return whether some choice has a line that is whole."""
        return any("\n" in one.text for collector in self._collectors.values() for one in collector.completions())

    @property
    def prompt_scores(self) -> int:
        """Return the number of log-probabilities of prompts that are kept: only the first frame of each choice shows
        them."""
        if not self._has_scores:
            return 0
        scores = (one.prompt_scores for one in self._collectors.values())
        return sum(len(entries) * (1 + len(entries[0].top)) for entries in scores if entries)

    def take(self, event: Event) -> None:
        """Add an event of one of the requests, for an answer at the end."""
        self._collectors[event.request_id].take(event)

    def forget(self) -> None:
        """Drop what was collected, once it is sent; counts and ends remain."""
        for one in self._collectors.values():
            one.forget()

    # -- whole ----------------------------------------------------------------------------------------------------

    def answer(self) -> bytes:
        """Return the answer as JSON, once all have finished. Raises ApiError where one of them failed."""
        choices: list[Choice] = []
        for collector in self._collectors.values():
            _check(collector)
            for one in _best(collector.completions(), self._call.n):
                answer = None if self._call.parsing is None else collector.answer(one.index)
                choices.append(Choice(len(choices), collector, one, answer))
        return self._serializer.whole(choices, self._usage(self.output_tokens))

    # -- frames ---------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bytes:
        return self._serializer.alive

    def frames(self, events: Iterable[Event]) -> bytes:
        """Return server-sent events of what these events add. Raises ApiError."""
        before = after = _NO_USAGE
        if shows_usage := self._serializer.shows_usage:
            before = self._usage(self.output_tokens)
        changes = self._fold(events)
        begun = len(self._begun)
        for change in changes:
            if change.finish is not None:
                _check(change.collector)  # a failure is reported at once, and not as a choice
            if change.index not in self._begun:
                change.begins = True
                self._begun.add(change.index)
        if shows_usage:
            after = self._usage(self.output_tokens)
            before = replace(before, cached_tokens=after.cached_tokens)  # what it found was there before its tokens
        frames = self._serializer.frames(changes, before, after, not self._running)
        if begun < len(self._begun) == len(self._collectors) * self._call.n:
            self.forget()
        return frames

    def last_frames(self) -> bytes:
        return self._serializer.end(self._usage(self.output_tokens))

    def kept(self) -> bytes:
        """Return what is stored, as JSON, when all have finished; before `last_frames`."""
        assert isinstance(self._serializer, KeepableSerializer), "only such are stored"
        return self._serializer.kept(self._usage(self.output_tokens))

    def failed(self, error: ApiError) -> bytes:
        return self._serializer.failed(error)

    def _fold(self, events: Iterable[Event]) -> list[Change]:
        """Return the changes of choices by these events."""
        changes: dict[int, Change] = {}
        for event in events:
            collector, first = self._collectors[event.request_id], self._first_index[event.request_id]
            sample, text = collector.take(event)
            if isinstance(event, FinishedEvent):
                self._running -= 1
                for index, finish in enumerate(event.finishes, first):
                    if index not in self._ended:  # it ended without a last token
                        self._ended.add(index)
                        changes.setdefault(index, Change(index, collector)).finish = finish
            elif isinstance(event, TokensEvent):
                index = first + sample
                if (change := changes.get(index)) is None:
                    change = changes[index] = Change(index, collector)
                change.text += text
                change.token_ids += event.token_ids
                if self._call.parsing is None:
                    change.logprobs += event.logprobs or ()
                if event.finish is not None:
                    self._ended.add(index)
                    change.finish = event.finish
        if self._call.parsing is not None:
            for change in changes.values():
                added = change.collector.added(change.index % self._call.n)
                change.deltas, change.logprobs = added.deltas, added.logprobs
        return list(changes.values())

    def _usage(self, output_tokens: int) -> TokenUsage:
        collectors = self._collectors.values()
        return TokenUsage(
            self._prompt_tokens,
            output_tokens,
            sum(one.cached_tokens for one in collectors),
            sum(one.reasoning_tokens for one in collectors) if self._call.parsing is not None else 0,
        )


def _check(collector: OutputCollector) -> None:
    for finish in collector.finishes:
        if finish is not None and finish.reason == "error" and finish.by_request:
            raise invalid(
                finish.detail or "No token is allowed by the request's constraints; allow more.", code="nothing_to_draw"
            )
        if finish is not None and finish.reason == "error":
            raise ApiError(500, finish.detail or "The step failed.", type="server_error", code="step_failed")
        if finish is not None and finish.reason == "abort":
            raise ApiError(503, "The server aborted the request; send it again.", type="server_error", code="aborted")


def _best(outputs: list[CompletionOutput], n: int) -> list[CompletionOutput]:
    """Return the n samples of the highest log-probability per token, the best first; all, in order, if n is all."""
    if len(outputs) == n:
        return outputs

    def per_token(one: CompletionOutput) -> float:
        return (one.cumulative_logprob or 0.0) / max(1, len(one.token_ids))

    return heapq.nlargest(n, outputs, key=per_token)


# -- the envelope of OpenAI's completions and chat ---------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which readers skip


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, kw_only=True):
    reasoning_tokens: int


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class OpenAISerializer:
    """An `AnswerSerializer` but for its choices.

    Attributes:
        answer: struct of whole answers. name, frame_name: the `object` of whole answers and of frames.
    """

    answer: ClassVar[type[Struct]]
    name: ClassVar[str]
    frame_name: ClassVar[str]
    alive = ALIVE

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._collectors, self._names = call, collectors, names
        self._shows_usage = call.include_usage or call.continuous_usage
        envelope = encode(self._envelope(self.frame_name))
        self._begin = b"data: " + envelope[:-1] + b',"choices":['  # of all frames, encoded once

    @property
    def shows_usage(self) -> bool:
        return self._call.continuous_usage

    def whole_choice(self, choice: Choice) -> Struct:
        raise NotImplementedError

    def frame_choices(self, change: Change) -> tuple[list[Any], list[Any]]:
        """Return a choice of each frame: of those before any of its tokens, and of the others."""
        raise NotImplementedError

    def extras(self) -> dict[str, Any]:
        """Return the fields of a whole answer beside its choices."""
        return {}

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        # Encoded one by one: an encoder lets no other thread run.
        encoded = cast(Any, [Raw(encode(self.whole_choice(one))) for one in choices])
        ends = {"usage": self.usage(usage), **self.extras(), **self._ends()}
        return encode(self.answer(**self._envelope(self.name), choices=encoded, **ends))

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        choices: list[tuple[Struct, TokenUsage]] = []
        for change in changes:
            first, others = self.frame_choices(change)
            choices += [(one, before) for one in first]
            choices += [(one, after) for one in others]
        if not (ended or self._shows_usage):
            return b"".join([b"%b%b]}\n\n" % (self._begin, encode(choice)) for choice, _ in choices])
        last = len(choices) - 1 if ended else None
        return b"".join([self._frame_of(*choice, number == last) for number, choice in enumerate(choices)])

    def end(self, usage: TokenUsage) -> bytes:
        if not self._call.include_usage:
            return DONE
        return self._frame(b"", {"usage": self.usage(usage), **self._ends()}) + DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body) + DONE

    def usage(self, usage: TokenUsage) -> Usage:
        return Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.output_tokens,
            total_tokens=usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        )

    def _envelope(self, name: str) -> dict[str, Any]:
        call = self._call
        about = {"created": call.created, "model": call.model, "service_tier": call.tier}
        return {"id": call.call_id, "object": name, **about}

    def _frame_of(self, choice: Struct, usage: TokenUsage, last: bool) -> bytes:
        call, more = self._call, dict[str, Any]()
        if self._shows_usage:
            more["usage"] = self.usage(usage) if call.continuous_usage else None
        if last and not call.include_usage:
            more |= self._ends()
        return self._frame(encode(choice), more)

    def _frame(self, choice: bytes, more: dict[str, Any]) -> bytes:
        """Return a frame. more: fields behind its choice."""
        return b"%b%b]%b}\n\n" % (self._begin, choice, b"," + encode(more)[1:-1] if more else b"")

    def _ends(self) -> dict[str, Any]:
        """Return the fields of a whole answer, and of a stream's end, that few calls ask for."""
        call, more = self._call, dict[str, Any]()
        if call.timings:
            more["timings"] = timings_of(self._collectors)
        if call.kv_transfer:
            more["kv_transfer_params"] = Raw(call.kv_transfer)  # as routers between prefill and decode look for it
        return more


def timings_of(collectors: Sequence[OutputCollector]) -> Any:
    """Return the timings of one prompt; a list of those of several."""
    timings = [one.timings.to_json() for one in collectors if one.timings is not None]
    return timings[0] if len(collectors) == 1 else timings


def frame(content: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + encode(content) + b"\n\n"
