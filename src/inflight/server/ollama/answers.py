"""Answers of /api/chat and /api/generate: one object, or a line of JSON for each piece and a last one with counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from inflight.core.types.events import Finish
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import ContentDelta, ToolCallDelta, joined_deltas
from inflight.server.common.answers import Change, Choice, TokenUsage
from inflight.server.common.logprobs import TokenNames, chat_logprobs, encode
from inflight.server.common.prepared import Call
from inflight.server.common.tools import arguments_object
from inflight.server.errors import ApiError, ollama_error

DoneReason = Literal["stop", "length", "load", "unload"]


class OllamaFunction(Struct, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Struct, kw_only=True):
    id: str
    function: OllamaFunction


class OllamaAnswerMessage(Struct, kw_only=True):
    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaAnswer(Struct, kw_only=True):
    """Durations are in nanoseconds. load_duration: until the model was in memory. prompt_eval_duration: until the first
    token, without waiting; eval_duration: from there to the last one. dropped_messages: of a conversation that was too
    long. context: the tokens of prompt and answer."""

    model: str
    created_at: str
    message: OllamaAnswerMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    logprobs: list[dict[str, Any]] | UnsetType = UNSET
    dropped_messages: int | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


def created_at() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def empty_answer(model: str, *, is_chat: bool, reason: DoneReason) -> bytes:
    """Return the answer to a body that asks for nothing but a model's loading or unloading."""
    text: dict[str, Any] = {"response": ""}
    if is_chat:
        text = {"message": OllamaAnswerMessage(role="assistant", content="")}
    return encode(OllamaAnswer(model=model, created_at=created_at(), done=True, done_reason=reason, **text))


def durations(collectors: Sequence[OutputCollector], waited: float) -> dict[str, int]:
    """Return the durations of an answer. waited: seconds until the model was in memory."""
    timings = [one.timings for one in collectors if one.timings is not None]
    total = max((one.total_ms for one in timings), default=0.0)
    return {
        "total_duration": _nanoseconds(waited * 1e3 + total),
        "load_duration": _nanoseconds(waited * 1e3),
        "prompt_eval_duration": _nanoseconds(sum(one.prefill_ms for one in timings)),
        "eval_duration": _nanoseconds(sum(one.decode_ms for one in timings)),
    }


def _nanoseconds(milliseconds: float) -> int:
    return max(1, round(milliseconds * 1e6))  # clients divide by it


class _Serializer:
    """An `AnswerSerializer` but for the fields of the text. There is one choice.

    Attributes:
        has_context: An answer has the tokens that a later prompt may go on from.
    """

    shows_usage = False

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._collectors, self._names = call, collectors, names
        self.has_context = False
        self._open: ToolCallDelta | None = None  # a call that may go on
        self._finish: Finish | None = None
        self._tokens: list[int] = []

    def text(self, content: str, thinking: str = "", calls: Sequence[OllamaCall] = ()) -> dict[str, Any]:
        """Return the fields of an answer that hold its text."""
        raise NotImplementedError

    @property
    def alive(self) -> bytes:
        return self._line(self.text(""), done=False)

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        (choice,) = choices
        output, answer, self._finish = choice.output, choice.answer, choice.collector.finishes[0]
        if answer is None:
            text = self.text(output.text)
        else:
            thinking = answer.reasoning if self._call.include_reasoning else ""
            calls = [_call(index, one.name, one.arguments, one.call_id) for index, one in enumerate(answer.calls)]
            text = self.text(answer.content, thinking, calls)
        return self._last_line(text | self._logprobs(output.token_logprobs or ()), output.token_ids, usage)

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        lines: list[bytes] = []
        for change in changes:
            if self.has_context:
                self._tokens += change.token_ids
            self._finish = change.finish or self._finish
            texts = self._texts(change)
            if logprobs := self._logprobs(change.logprobs):
                texts = texts or [self.text("")]
                texts[-1] |= logprobs
            lines += [self._line(text, done=False) for text in texts]
        return b"".join(lines)

    def end(self, usage: TokenUsage) -> bytes:
        return self._last_line(self.text(""), self._tokens, usage)

    def failed(self, error: ApiError) -> bytes:
        return encode(ollama_error(error)) + b"\n"

    def _texts(self, change: Change) -> list[dict[str, Any]]:
        """Return the text fields of a change's lines. A call is shown once it has ended."""
        if self._call.parsing is None:
            return [self.text(change.text)] if change.text else []
        texts: list[dict[str, Any]] = []
        for delta in joined_deltas(change.deltas):
            known = self._open
            if isinstance(delta, ToolCallDelta) and known is not None and delta.index == known.index:
                self._open = ToolCallDelta(known.index, known.name, known.arguments + delta.arguments, known.call_id)
                continue
            texts += self._closed()
            if isinstance(delta, ToolCallDelta):
                self._open = delta
            elif isinstance(delta, ContentDelta):
                texts.append(self.text(delta.text))
            elif self._call.include_reasoning:
                texts.append(self.text("", delta.text))
        return texts if change.finish is None else [*texts, *self._closed()]

    def _closed(self) -> list[dict[str, Any]]:
        """Close the call that may go on, and return its text fields."""
        one, self._open = self._open, None
        if one is None:
            return []
        return [self.text("", calls=[_call(one.index, one.name or "", one.arguments, one.call_id or "")])]

    def _context(self, tokens: Sequence[int]) -> dict[str, Any]:
        """tokens: of the output."""
        return {"context": [*self._collectors[0].request.prompt_token_ids, *tokens]} if self.has_context else {}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._call.logprobs is None or not entries:
            return {}
        return {"logprobs": chat_logprobs(entries, self._names)["content"]}

    def _last_line(self, text: dict[str, Any], tokens: Sequence[int], usage: TokenUsage) -> bytes:
        finish, echoed = self._finish, self._call.echoed
        return self._line(
            {**text, **self._context(tokens), **(msgspec.json.decode(echoed) if echoed else {})},
            done=True,
            done_reason="length" if finish is not None and finish.reason == "length" else "stop",
            prompt_eval_count=usage.prompt_tokens,
            eval_count=usage.output_tokens,
            **durations(self._collectors, self._call.waited),
        )

    def _line(self, text: dict[str, Any], **fields: Any) -> bytes:
        return encode(OllamaAnswer(model=self._call.model, created_at=created_at(), **text, **fields)) + b"\n"


def _call(index: int, name: str, arguments: str, call_id: str) -> OllamaCall:
    function = OllamaFunction(index=index, name=name, arguments=arguments_object(arguments))
    return OllamaCall(id=call_id, function=function)


class ChatSerializer(_Serializer):
    def text(self, content: str, thinking: str = "", calls: Sequence[OllamaCall] = ()) -> dict[str, Any]:
        message = OllamaAnswerMessage(role="assistant", content=content)
        if thinking:
            message.thinking = thinking
        if calls:
            message.tool_calls = list(calls)
        return {"message": message}


class GenerateSerializer(_Serializer):
    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        super().__init__(call, collectors, names)
        self.has_context = call.parsing is not None  # not where a prompt was continued as it is, as with ollama

    def text(self, content: str, thinking: str = "", calls: Sequence[OllamaCall] = ()) -> dict[str, Any]:
        return {"response": content, **({"thinking": thinking} if thinking else {})}
