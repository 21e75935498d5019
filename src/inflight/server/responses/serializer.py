"""Answers of /v1/responses: one object, or numbered events that end with it.

Knows the response object, its states and its usage; what stands in its output, `output` knows. Nothing is held of a
stream but its items, which the last event holds once more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw

from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta
from inflight.server.call import Call
from inflight.server.errors import ApiError
from inflight.server.logprobs import TokenNames, chat_logprobs, encode
from inflight.server.responses.output import Json, Output
from inflight.server.responses.repeated import decode_repeated
from inflight.server.responses.stored import PREFIX
from inflight.server.serializers.deltas import deltas_of, joined
from inflight.server.serializers.protocol import Change, Choice, Usage

State = Literal["in_progress", "completed", "incomplete", "failed"]
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponsesSerializer:
    """A `KeepableSerializer`. There is one choice."""

    alive = b": waiting\n\n"

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._names = call, names
        self._params = collectors[0].request.params
        self._repeated: Json = msgspec.to_builtins(decode_repeated(call.repeated), builtin_types=(Raw,))
        self._output = Output(call.call_id.removeprefix(PREFIX))
        self._events = 0  # so far: their numbers
        self._finish_reason: str | None = None
        self._kept = b""
        self._untold: list[Raw] = []  # log-probabilities of tokens whose text has not come yet

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        assert choice.answer is not None, "a conversation's answers are parsed"
        self._untold = self._logprobs(choice.output.token_logprobs or ())
        for delta in deltas_of(choice.answer):
            self._push(delta)
        self._finish_reason = choice.output.finish_reason
        self._output.finish(self._is_cut_off)
        return encode(self._response(self._ended_state, usage))

    # -- events -------------------------------------------------------------------------------------------------------

    def frames(self, changes: Sequence[Change], before: Usage, after: Usage, ended: bool) -> bytes:
        events: list[Json] = [] if self._events else self._opening()
        for change in changes:
            self._untold += self._logprobs(change.logprobs)
            for delta in joined(change.deltas):
                events += self._push(delta)
            if change.finish is not None:
                self._finish_reason = change.finish.reason
                events += self._output.finish(self._is_cut_off)
        return b"".join(map(self._event, events))

    def end(self, usage: Usage) -> bytes:
        return self._event({"type": f"response.{self._ended_state}", "response": Raw(self.kept(usage))})

    def kept(self, usage: Usage) -> bytes:
        if not self._kept:
            self._kept = encode(self._response(self._ended_state, usage))
        return self._kept

    def failed(self, error: ApiError) -> bytes:
        told: Json = {"code": _CODES.get(error.status, "server_error"), "message": error.message}
        if not self._events:
            return self._event({"type": "error", **told, "code": error.code, "param": error.param})
        return self._event({"type": "response.failed", "response": self._response("failed", None, told)})

    def _opening(self) -> list[Json]:
        begun = self._response("in_progress", None)
        return [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]

    def _event(self, content: Json) -> bytes:
        number, self._events = self._events, self._events + 1
        return b"event: %b\ndata: %b\n\n" % (content["type"].encode(), encode({**content, "sequence_number": number}))

    # -- both ---------------------------------------------------------------------------------------------------------

    @property
    def _is_cut_off(self) -> bool:
        return self._finish_reason == "length"

    @property
    def _ended_state(self) -> State:
        return "incomplete" if self._is_cut_off else "completed"

    def _push(self, delta: AnswerDelta) -> list[Json]:
        tokens = delta.tokens if isinstance(delta, ContentDelta) else 0
        logprobs, self._untold = self._untold[:tokens], self._untold[tokens:]
        return self._output.push(delta, logprobs)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[Raw]:
        if self._call.logprobs is None or not entries:
            return []
        content: list[Raw] = chat_logprobs(entries, self._names)["content"]
        return content

    def _response(self, state: State, usage: Usage | None, error: Json | None = None) -> Json:
        call, has_ended = self._call, state in ("completed", "incomplete")
        return {
            "id": call.call_id,
            "object": "response",
            "created_at": call.created,
            "completed_at": int(time.time()) if state == "completed" else None,
            "status": state,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if state == "incomplete" else None,
            "model": call.model,
            "output": self._output.shown() if has_ended else [],
            "service_tier": call.tier,
            "temperature": self._params.temperature,
            "top_p": self._params.top_p,
            "usage": None if usage is None else _usage(usage),
            **self._repeated,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
