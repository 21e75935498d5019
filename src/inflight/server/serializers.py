"""Choices in OpenAI's shapes, whole or in frames: what completions and chat share, and where they differ.

Knows a call, its collectors and what changed; not how it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inflight.core.types.logprobs import TokenLogprob
from inflight.frontend.outputs import CompletionOutput, OutputCollector
from inflight.server.logprobs import CompletionLogprobs, TokenNames, chat_logprobs, joined, prompt_logprobs
from inflight.server.translating import Call


@dataclass(slots=True)
class Change:
    """What is new of one choice: folded from everything that happened since its last frame."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatSerializer:
    name, frame_name = "chat.completion", "chat.completion.chunk"  # the `object` of whole answers, and of frames

    def __init__(self, call: Call, index: int, collector: OutputCollector, names: TokenNames):
        self._call, self._index, self._names = call, index, names

    def whole(self, output: CompletionOutput) -> dict[str, Any]:
        shown = self._call.logprobs is not None
        return {
            "index": self._index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": chat_logprobs(output.token_logprobs or (), self._names) if shown else None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            **({"token_ids": output.token_ids} if self._call.return_token_ids else {}),
        }

    def first(self) -> dict[str, Any] | None:
        """A frame of the choice before any of its tokens."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def part(self, change: Change) -> dict[str, Any]:
        shown = self._call.logprobs is not None
        choice = {
            "index": self._index,
            "delta": {"content": change.text} if change.text or change.finish_reason is None else {},
            "logprobs": chat_logprobs(change.logprobs, self._names) if shown and change.logprobs else None,
            "finish_reason": change.finish_reason,
        }
        if change.finish_reason is not None:
            choice["stop_reason"] = change.stop_reason
        if self._call.return_token_ids:
            choice["token_ids"] = change.token_ids
        return choice


class CompletionSerializer:
    name = frame_name = "text_completion"

    def __init__(self, call: Call, index: int, collector: OutputCollector, names: TokenNames):
        self._call, self._index, self._names = call, index, names
        self._collector = collector
        self._logprobs = CompletionLogprobs(names, collector.request)
        self._begun = False

    def whole(self, output: CompletionOutput) -> dict[str, Any]:
        scored = self._scored()
        logprobs = None
        if self._call.logprobs is not None:
            logprobs = joined([*scored, self._logprobs.output(output.token_logprobs or ())])
        return {
            "index": self._index,
            "text": self._echoed() + output.text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            **self._prompt_extras(),
            **({"token_ids": output.token_ids} if self._call.return_token_ids else {}),
        }

    def first(self) -> dict[str, Any] | None:
        """With echo the prompt is the beginning of the text."""
        extras = self._prompt_extras()
        if not (self._call.echo or extras):
            return None
        scored = self._scored()
        return {
            "index": self._index,
            "text": self._echoed(),
            "logprobs": scored[0] if scored else None,
            "finish_reason": None,
            **extras,
        }

    def part(self, change: Change) -> dict[str, Any]:
        shown = self._call.logprobs is not None and change.logprobs
        choice = {
            "index": self._index,
            "text": change.text,
            "logprobs": self._logprobs.output(change.logprobs) if shown else None,
            "finish_reason": change.finish_reason,
        }
        if change.finish_reason is not None:
            choice["stop_reason"] = change.stop_reason
        if self._call.return_token_ids:
            choice["token_ids"] = change.token_ids
        return choice

    def _echoed(self) -> str:
        return (self._collector.prompt or "") if self._call.echo else ""

    def _scored(self) -> list[dict[str, Any]]:
        """The prompt's log-probabilities, where its text is shown with them."""
        if not self._call.echo or self._call.logprobs is None:
            return []
        most = self._call.logprobs
        scores = [TokenLogprob(one.token_id, one.logprob, one.top[:most]) for one in self._collector.prompt_scores]
        return [self._logprobs.prompt(self._echoed(), scores)]

    def _prompt_extras(self) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self._call.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(self._collector.prompt_scores, self._names)
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = list(self._collector.request.prompt_token_ids)
        return extras


ChoiceSerializer = ChatSerializer | CompletionSerializer  # of one choice, which belongs to one prompt
SERIALIZERS: dict[str, type[ChatSerializer] | type[CompletionSerializer]] = {
    "chat": ChatSerializer,
    "completion": CompletionSerializer,
}


def chat_extras(call: Call, collector: OutputCollector, names: TokenNames) -> dict[str, Any]:
    """What chat says of the prompt, beside its choices."""
    extras: dict[str, Any] = {}
    if call.kind == "chat" and call.prompt_logprobs:
        extras["prompt_logprobs"] = prompt_logprobs(collector.prompt_scores, names)
    if call.kind == "chat" and call.return_token_ids:
        extras["prompt_token_ids"] = list(collector.request.prompt_token_ids)
    return extras
