"""The answer to a call, put together from the engine's events: whole, or frame by frame.

Knows a call, its collectors and serializers; not where events come from, nor where frames go. The server follows a
stream with it; the command line's OpenAI lines come from it too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.frontend.outputs import CompletionOutput, OutputCollector
from inflight.server.errors import ApiError
from inflight.server.logprobs import TokenNames, encode
from inflight.server.serializers import SERIALIZERS, Change, ChoiceSerializer, chat_extras
from inflight.server.translating import Call


class ResponseBuilder:
    def __init__(self, call: Call, collectors: Mapping[str, OutputCollector], names: TokenNames):
        """collectors: of the call's requests, by id, in their order."""
        self._call = call
        self._collectors = collectors
        self._names = names
        self._first_index = {request_id: number * call.n for number, request_id in enumerate(collectors)}
        self._serializers: dict[int, ChoiceSerializer] = {}  # of the choices that have a frame
        self._ended: set[int] = set()  # choices whose last frame is made
        self._prompt_tokens = sum(len(one.request.prompt_token_ids) for one in collectors.values())
        self._kind = SERIALIZERS[call.kind]
        self._frame_envelope = self._envelope(self._kind.frame_name)

    @property
    def output_tokens(self) -> int:
        """Of everything that was drawn, shown or not."""
        return sum(one.output_tokens for one in self._collectors.values())

    @property
    def collectors(self) -> list[OutputCollector]:
        return list(self._collectors.values())

    @property
    def finished(self) -> bool:
        return all(one.finished for one in self._collectors.values())

    @property
    def prompt_scores(self) -> int:
        """Log-probabilities of prompts that are kept: frames show them with the first of each choice, and then no
        more."""
        scores = (one.prompt_scores for one in self._collectors.values())
        return sum(len(entries) * (1 + len(entries[0].top)) for entries in scores if entries)

    def take(self, event: Event) -> None:
        """An event of one of the requests, for an answer at the end."""
        self._collectors[event.request_id].take(event)

    def forget(self) -> None:
        """What was collected has been told; what is left are counts and ends."""
        for one in self._collectors.values():
            one.forget()

    # -- whole ----------------------------------------------------------------------------------------------------

    def answer(self) -> bytes:
        """As JSON, once all have finished. Raises ApiError where one of them failed."""
        choices: list[msgspec.Raw] = []
        for collector in self._collectors.values():
            _check(collector)
            for one in _best(collector.completions(), self._call.n):
                # One by one: what encodes lets nobody else run meanwhile.
                choices.append(msgspec.Raw(encode(self._serializer(collector, len(choices)).whole(one))))
        first = next(iter(self._collectors.values()))
        answer = self._envelope(self._serializer(first, 0).name)
        answer["choices"] = choices
        answer["usage"] = self._usage(self.output_tokens, self._cached_tokens)
        return encode(answer | chat_extras(self._call, first, self._names) | self._timings())

    # -- frames ---------------------------------------------------------------------------------------------------

    def frames(self, events: Iterable[Event]) -> bytes:
        """Server-sent events of what these events add; nothing where they add nothing. Raises ApiError."""
        call, before = self._call, self.output_tokens
        choices: list[tuple[dict[str, Any], int]] = []  # and the output tokens so far
        changes = self._fold(events)
        for collector in {collector for collector, _ in changes.values()}:
            _check(collector)  # one that failed is told at once, and not as a choice
        after, begun = self.output_tokens, len(self._serializers)
        for index, (collector, change) in changes.items():
            if index not in self._serializers:
                serializer = self._serializers[index] = self._serializer(collector, index)
                first = serializer.first()
                choices += [] if first is None else [(first, before)]
            if change.text or change.finish_reason or call.logprobs is not None or call.return_token_ids:
                choices.append((self._serializers[index].part(change), after))
        if begun < len(self._serializers) == len(self._collectors) * call.n:
            self.forget()
        last = len(choices) - 1 if self.finished else None
        cached = self._cached_tokens if call.continuous_usage else 0
        return b"".join([self._frame(*choice, cached, number == last) for number, choice in enumerate(choices)])

    def last_frames(self) -> bytes:
        """What comes when all have finished: the usage, if it was asked for."""
        if not self._call.include_usage:
            return b""
        usage = self._usage(self.output_tokens, self._cached_tokens)
        return frame({**self._frame_envelope, "choices": [], "usage": usage, **self._timings()})

    def _frame(self, choice: dict[str, Any], output_tokens: int, cached: int, last: bool) -> bytes:
        whole: dict[str, Any] = {**self._frame_envelope, "choices": [choice]}
        if self._call.include_usage or self._call.continuous_usage:
            whole["usage"] = self._usage(output_tokens, cached) if self._call.continuous_usage else None
        if last and not self._call.include_usage:
            whole |= self._timings()
        return frame(whole)

    def _fold(self, events: Iterable[Event]) -> dict[int, tuple[OutputCollector, Change]]:
        """By choice, what these events add to it."""
        changes: dict[int, tuple[OutputCollector, Change]] = {}
        for event in events:
            collector, first = self._collectors[event.request_id], self._first_index[event.request_id]
            sample, text = collector.take(event)
            if isinstance(event, FinishedEvent):
                for index, finish in enumerate(event.finishes, first):
                    if index not in self._ended:  # it ended without a last token
                        self._end(changes.setdefault(index, (collector, Change()))[1], index, finish)
            elif isinstance(event, TokensEvent):
                change = changes.setdefault(first + sample, (collector, Change()))[1]
                change.text += text
                change.token_ids += event.token_ids
                change.logprobs += event.logprobs or ()
                if event.finish is not None:
                    self._end(change, first + sample, event.finish)
        return changes

    def _end(self, change: Change, index: int, finish: Finish) -> None:
        self._ended.add(index)
        change.finish_reason, change.stop_reason = finish.reason, finish.stopped_by

    # -- both -----------------------------------------------------------------------------------------------------

    def _serializer(self, collector: OutputCollector, index: int) -> ChoiceSerializer:
        return self._kind(self._call, index, collector, self._names)

    def _envelope(self, name: str) -> dict[str, Any]:
        call = self._call
        return {
            "id": call.call_id,
            "object": name,
            "created": call.created,
            "model": call.model,
            "service_tier": call.tier,
        }

    @property
    def _cached_tokens(self) -> int:
        """Of the prompts that have finished."""
        return sum(one.timings.cached_tokens for one in self._collectors.values() if one.timings is not None)

    def _usage(self, output_tokens: int, cached: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": self._prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _timings(self) -> dict[str, Any]:
        """One account for one prompt; a list for several."""
        if not self._call.timings:
            return {}
        timings = [one.timings.to_json() for one in self._collectors.values() if one.timings is not None]
        return {"timings": timings[0] if len(self._collectors) == 1 else timings}


def frame(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(content) + b"\n\n"


def _check(collector: OutputCollector) -> None:
    for finish in collector.finishes:
        if finish is not None and finish.reason == "error":
            raise ApiError(500, finish.detail or "The step failed.", type="server_error", code="step_failed")
        if finish is not None and finish.reason == "abort":
            raise ApiError(503, "The request was ended by the server.", type="server_error", code="aborted")


def _best(outputs: list[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The n samples with the highest log-probability per token, the best first; all of them, in order, if n is all."""
    if len(outputs) == n:
        return outputs

    def per_token(one: CompletionOutput) -> float:
        return (one.cumulative_logprob or 0.0) / max(1, len(one.token_ids))

    return heapq.nlargest(n, outputs, key=per_token)
