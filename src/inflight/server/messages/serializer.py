"""Answers of /v1/messages: one message, or the events of it.

Knows the message object, why it stopped, and its usage; what stands in its content, `blocks` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.core.types.events import Finish
from inflight.frontend.outputs import OutputCollector
from inflight.server.call import Call
from inflight.server.errors import ApiError
from inflight.server.logprobs import TokenNames, encode
from inflight.server.messages.blocks import Blocks, Json, content_of
from inflight.server.messages.errors import body_of
from inflight.server.serializers.deltas import deltas_of, joined
from inflight.server.serializers.protocol import Change, Choice, Usage

PREFIX = "msg_"  # of ids


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

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        assert choice.answer is not None, "a conversation's answers are parsed"
        content = content_of(deltas_of(choice.answer), self._call.include_reasoning)
        (finish,) = choice.collector.finishes
        stopped = self._stopped(finish, len(choice.answer.calls), usage)
        return encode(self._message(content, stopped, usage))

    # -- events -------------------------------------------------------------------------------------------------------

    def frames(self, changes: Sequence[Change], before: Usage, after: Usage, ended: bool) -> bytes:
        events: list[Json] = []
        if changes and not self._has_begun:
            self._has_begun = True
            events.append({"type": "message_start", "message": self._message([], _going_on(), before)})
        for change in changes:
            for delta in joined(change.deltas):
                events += self._blocks.push(delta)
            if change.finish is not None:
                self._finish = change.finish
                events += self._blocks.finish()
        return b"".join(map(_event, events))

    def end(self, usage: Usage) -> bytes:
        stopped = self._stopped(self._finish, self._blocks.calls, usage)
        told = {"type": "message_delta", "delta": stopped, "usage": _usage(usage)}
        return _event(told) + _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        return _event(body_of(error))

    # -- both ---------------------------------------------------------------------------------------------------------

    def _message(self, content: list[Json], stopped: Json, usage: Usage) -> Json:
        call = self._call
        return {
            "id": call.call_id,
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": content,
            **stopped,
            "usage": _usage(usage) | {"service_tier": "batch" if call.tier == "flex" else "standard"},
        }

    def _stopped(self, finish: Finish | None, calls: int, usage: Usage) -> Json:
        """Without room for all the tokens that were asked for, it is the context that has ended the answer."""
        if finish is not None and finish.reason == "length":
            is_all = self._max_tokens is not None and usage.output_tokens >= self._max_tokens
            return _stop("max_tokens" if is_all else "model_context_window_exceeded")
        if finish is not None and isinstance(finish.stopped_by, str):
            return _stop("stop_sequence", finish.stopped_by)
        return _stop("tool_use" if calls else "end_turn")


def _going_on() -> Json:
    return _stop(None)


def _stop(reason: str | None, sequence: str | None = None) -> Json:
    return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(usage: Usage) -> dict[str, Any]:
    """input_tokens: those that were computed. Nothing is paid for what is put into the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _event(content: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (content["type"].encode(), encode(content))
