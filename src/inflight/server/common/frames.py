"""Answers and server-sent events of OpenAI's completions and chat: envelope, usage, timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from inflight.frontend.outputs import OutputCollector
from inflight.server.common.answers import Change, Choice, TokenUsage
from inflight.server.common.fields import StreamOptions
from inflight.server.common.logprobs import TokenNames, encode
from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError

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


class RenderedRequest(Struct, kw_only=True):
    """sampling_params: by vLLM's names; max_tokens: what the context leaves of those asked for."""

    request_id: str
    token_ids: tuple[int, ...]
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: StreamOptions | None
    cache_salt: str | None
    priority: int


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

    # -- what differs -----------------------------------------------------------------------------------------------

    def whole_choice(self, choice: Choice) -> Struct:
        raise NotImplementedError

    def frame_choices(self, change: Change) -> tuple[list[Any], list[Any]]:
        """Return a choice of each frame: of those before any of its tokens, and of the others."""
        raise NotImplementedError

    def extras(self) -> dict[str, Any]:
        """Return the fields of a whole answer beside its choices."""
        return {}

    # -- what does not ----------------------------------------------------------------------------------------------

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
        return {
            "id": call.call_id,
            "object": name,
            "created": call.created,
            "model": call.model,
            "service_tier": call.tier,
        }

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
