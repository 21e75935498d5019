"""Answers of /v1/chat/completions: content, reasoning, calls of tools.

Knows OpenAI's shapes, and `reasoning_content` and `reasoning` beside them, as the field's servers name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.core.types.events import Finish
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import ContentDelta, ToolCallDelta
from inflight.frontend.segments import ToolCall
from inflight.server.call import Call
from inflight.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from inflight.server.serializers.openai import OpenAISerializer
from inflight.server.serializers.protocol import Change, Choice, Usage

Json = dict[str, Any]


class ChatSerializer(OpenAISerializer):
    name, frame_name = "chat.completion", "chat.completion.chunk"

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        super().__init__(call, collectors, names)
        self._calling: set[int] = set()  # choices that have called a tool

    # -- whole ------------------------------------------------------------------------------------------------------

    def whole_choice(self, choice: Choice) -> Json:
        call, output, answer = self._call, choice.output, choice.answer
        assert answer is not None, "a conversation's answers are parsed"
        message: Json = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.calls:
            message["content"] = answer.content or None
            message |= self._calls(answer.calls)
        if answer.reasoning and call.include_reasoning:
            message |= _reasoning(answer.reasoning)
        shown = call.logprobs is not None
        return {
            "index": choice.index,
            "message": message,
            "logprobs": chat_logprobs(output.token_logprobs or (), self._names) if shown else None,
            "finish_reason": self._finish_reason(output.finish_reason, bool(answer.calls)),
            "stop_reason": output.stop_reason,
            **({"token_ids": output.token_ids} if call.return_token_ids else {}),
        }

    def _calls(self, calls: Sequence[ToolCall]) -> Json:
        if self._call.old_functions:
            return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
        return {
            "tool_calls": [
                {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in calls
            ]
        }

    def extras(self) -> Json:
        """What chat says of the prompt, beside its choices."""
        extras: Json = {}
        collector = self._collectors[0]
        if self._call.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(collector.prompt_scores, self._names)
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = list(collector.request.prompt_token_ids)
        return extras

    def usage(self, usage: Usage) -> Json:
        return super().usage(usage) | {"completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}

    # -- frames -----------------------------------------------------------------------------------------------------

    def frame_choices(self, change: Change) -> tuple[list[Json], list[Json]]:
        first = [_opening(change.index)] if change.begins else []
        call, deltas = self._call, self._deltas(change)
        shows_tokens = (call.logprobs is not None and change.logprobs) or call.return_token_ids
        if not deltas and (change.finish is not None or shows_tokens):
            deltas = [{} if change.finish is not None else {"content": ""}]
        if change.finish is not None and not deltas[-1].keys().isdisjoint(("tool_calls", "function_call")):
            deltas.append({})  # clients' helpers take a call for ended at a reason that comes behind it
        choices = [_choice(change.index, delta) for delta in deltas]
        if choices:
            self._tell_tokens(choices[-1], change)
        if change.finish is not None:
            self._tell_end(choices[-1], change.index, change.finish)
        return first, choices

    def _tell_tokens(self, choice: Json, change: Change) -> None:
        """With the last of the frames that a step's tokens make."""
        if self._call.logprobs is not None and change.logprobs:
            choice["logprobs"] = chat_logprobs(change.logprobs, self._names)
        if self._call.return_token_ids:
            choice["token_ids"] = change.token_ids

    def _tell_end(self, choice: Json, index: int, finish: Finish) -> None:
        choice["finish_reason"] = self._finish_reason(finish.reason, index in self._calling)
        choice["stop_reason"] = finish.stopped_by

    def _deltas(self, change: Change) -> list[Json]:
        """OpenAI's deltas: neighbours of one kind are joined."""
        deltas: list[Json] = []
        for one in change.deltas:
            if isinstance(one, ToolCallDelta):
                self._calling.add(change.index)
                _add_call(deltas, self._call_delta(one))
            elif isinstance(one, ContentDelta):
                _add_text(deltas, {"content": one.text})
            elif self._call.include_reasoning:
                _add_text(deltas, _reasoning(one.text))
        return deltas

    def _call_delta(self, delta: ToolCallDelta) -> Json:
        if self._call.old_functions:
            named = {} if delta.name is None else {"name": delta.name}
            return {"function_call": {**named, "arguments": delta.arguments}}
        function: Json = {"arguments": delta.arguments}
        if delta.name is None:
            return {"tool_calls": [{"index": delta.index, "function": function}]}
        function = {"name": delta.name, **function}
        return {"tool_calls": [{"index": delta.index, "id": delta.call_id, "type": "function", "function": function}]}

    def _finish_reason(self, reason: str | None, calls: bool) -> str | None:
        """A call that was cut off by its length is told as that."""
        if reason != "stop" or not calls:
            return reason
        return "function_call" if self._call.old_functions else "tool_calls"


def _opening(index: int) -> Json:
    """A frame of the choice before any of its tokens."""
    return _choice(index, {"role": "assistant", "content": "", "refusal": None})


def _choice(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _reasoning(text: str) -> Json:
    return {"reasoning_content": text, "reasoning": text}


def _add_text(deltas: list[Json], delta: Json) -> None:
    if deltas and deltas[-1].keys() == delta.keys():
        for name, text in delta.items():
            deltas[-1][name] += text
    else:
        deltas.append(delta)


def _add_call(deltas: list[Json], delta: Json) -> None:
    """Arguments go on in the frame before, where that is of the same call."""
    last = deltas[-1] if deltas else {}
    if "function_call" in delta and "function_call" in last and "name" not in delta["function_call"]:
        last["function_call"]["arguments"] += delta["function_call"]["arguments"]
        return
    if "tool_calls" in delta and "tool_calls" in last:
        before, new = last["tool_calls"][-1], delta["tool_calls"][0]
        if "id" not in new and new["index"] == before["index"]:
            before["function"]["arguments"] += new["function"]["arguments"]
            return
    deltas.append(delta)
