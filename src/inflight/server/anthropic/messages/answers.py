"""Answers of /v1/messages: one message, or the events of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from inflight.core.types.events import Finish
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta, ReasoningDelta, ToolCallDelta, joined_deltas
from inflight.server.anthropic.messages.schema import (
    DirectCaller,
    MessageContent,
    MessagesAnswer,
    MessageUsage,
    ThinkingTokens,
)
from inflight.server.common.answers import Change, Choice, TokenUsage
from inflight.server.common.logprobs import TokenNames, encode
from inflight.server.common.prepared import Call
from inflight.server.common.tools import arguments_object
from inflight.server.errors import ApiError, messages_error

Json = dict[str, Any]
BlockKind = Literal["thinking", "text", "tool_use"]
SIGNATURE = "unsigned"  # reasoning is shown as it is, and accepted as it comes back; clients want some text


class Blocks:
    """The blocks of a streamed answer, of which the last is open until the next begins. Their text is not retained."""

    def __init__(self, shows_thinking: bool):
        """shows_thinking: blocks have the text of the reasoning; else they only show that there was some."""
        self.calls = 0  # blocks of tool_use so far
        self._shows_thinking = shows_thinking
        self._count = 0
        self._open: tuple[BlockKind, int] | None = None  # with which of the answer's calls it is

    def push(self, delta: AnswerDelta) -> list[Json]:
        """Return the events that report a delta."""
        added = _delta(delta)
        if added is None and not isinstance(delta, ToolCallDelta):
            return []
        events = self._opened(delta)
        if not added or (isinstance(delta, ReasoningDelta) and not self._shows_thinking):
            return events
        return [*events, {"type": "content_block_delta", "index": self._count - 1, "delta": added}]

    def finish(self) -> list[Json]:
        """Close the last block, and return the events that report it."""
        if self._open is None:
            return []
        (kind, _), self._open, index = self._open, None, self._count - 1
        stop: Json = {"type": "content_block_stop", "index": index}
        if kind != "thinking":
            return [stop]
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        return [{"type": "content_block_delta", "index": index, "delta": signed}, stop]

    def _opened(self, delta: AnswerDelta) -> list[Json]:
        is_call = isinstance(delta, ToolCallDelta)
        wanted = (_kind_of(delta), delta.index if isinstance(delta, ToolCallDelta) else 0)
        if self._open == wanted:
            return []
        events = self.finish()
        self._open, index = wanted, self._count
        self._count += 1
        self.calls += is_call
        return [*events, {"type": "content_block_start", "index": index, "content_block": _begun(delta)}]


def _kind_of(delta: AnswerDelta) -> BlockKind:
    if isinstance(delta, ReasoningDelta):
        return "thinking"
    return "tool_use" if isinstance(delta, ToolCallDelta) else "text"


def _begun(delta: AnswerDelta) -> Json:
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking", "thinking": "", "signature": ""}
    if isinstance(delta, ToolCallDelta):
        return {"type": "tool_use", "id": delta.call_id, "name": delta.name, "input": {}, "caller": DirectCaller()}
    return {"type": "text", "text": ""}


def _delta(delta: AnswerDelta) -> Json | None:
    """Return what a delta adds to its block; None where it adds nothing."""
    if isinstance(delta, ToolCallDelta):
        return {"type": "input_json_delta", "partial_json": delta.arguments} if delta.arguments else None
    if not delta.text:
        return None
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking_delta", "thinking": delta.text}
    return {"type": "text_delta", "text": delta.text}


def content_block(delta: AnswerDelta, shows_thinking: bool) -> MessageContent:
    """Return the block that a whole segment of the answer is."""
    if isinstance(delta, ReasoningDelta):
        return MessageContent(type="thinking", thinking=delta.text if shows_thinking else "", signature=SIGNATURE)
    if isinstance(delta, ToolCallDelta):
        given = arguments_object(delta.arguments)
        return MessageContent(type="tool_use", id=delta.call_id, name=delta.name, input=given, caller=DirectCaller())
    return MessageContent(type="text", text=delta.text)  # no citations: some clients take a list or none at all


class MessagesSerializer:
    """An `AnswerSerializer`. There is one choice."""

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call = call
        self._max_tokens = collectors[0].request.params.max_tokens
        self._blocks = Blocks(call.include_reasoning)
        self._has_begun = False
        self._finish: Finish | None = None

    @property
    def alive(self) -> bytes:
        return _event({"type": "ping"})

    @property
    def shows_usage(self) -> bool:
        return not self._has_begun

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        (choice,) = choices
        assert choice.answer is not None, "a conversation's answers are parsed"
        content = [content_block(delta, self._call.include_reasoning) for delta in choice.answer.deltas()]
        (finish,) = choice.collector.finishes
        stopped = self._stopped(finish, len(choice.answer.calls), usage)
        return encode(self._message(content, stopped, usage))

    # -- events -------------------------------------------------------------------------------------------------------

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        events: list[Json] = []
        if changes and not self._has_begun:
            self._has_begun = True
            events.append({"type": "message_start", "message": self._message([], _stop(None), before)})
        for change in changes:
            for delta in joined_deltas(change.deltas):
                events += self._blocks.push(delta)
            if change.finish is not None:
                self._finish = change.finish
                events += self._blocks.finish()
        return b"".join(map(_event, events))

    def end(self, usage: TokenUsage) -> bytes:
        stopped = self._stopped(self._finish, self._blocks.calls, usage)
        delta = {"type": "message_delta", "delta": stopped, "usage": _usage(usage)}
        return _event(delta) + _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        return _event(messages_error(error))

    # -- both ---------------------------------------------------------------------------------------------------------

    def _message(self, content: list[MessageContent], stopped: Json, usage: TokenUsage) -> MessagesAnswer:
        shown, call = _usage(usage), self._call
        shown.cache_creation = shown.inference_geo = None
        shown.service_tier = "batch" if call.tier == "flex" else "standard"
        return MessagesAnswer(
            id=call.call_id, type="message", role="assistant", model=call.model, content=content, usage=shown, **stopped
        )

    def _stopped(self, finish: Finish | None, calls: int, usage: TokenUsage) -> Json:
        """Return why the answer ended. With fewer tokens than were asked for, the context has ended it."""
        if finish is not None and finish.reason == "length":
            is_all = self._max_tokens is not None and usage.output_tokens >= self._max_tokens
            return _stop("max_tokens" if is_all else "model_context_window_exceeded")
        if finish is not None and isinstance(finish.stopped_by, str):
            return _stop("stop_sequence", finish.stopped_by)
        return _stop("tool_use" if calls else "end_turn")


def _stop(reason: str | None, sequence: str | None = None) -> Json:
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None, "container": None}


def _usage(usage: TokenUsage) -> MessageUsage:
    """input_tokens: those that were computed. Nothing is paid for what is put into the cache."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        output_tokens_details=ThinkingTokens(thinking_tokens=usage.reasoning_tokens),
    )


def _event(content: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (content["type"].encode(), encode(content))
