"""A call on its way through the engine: opened, followed, folded into one answer or into frames.

Knows the bridge's streams, collectors and shapes; not HTTP. Not streaming is streaming, collected. A frame holds all
that happened since the last one was taken, so that a slow reader gets fewer and larger frames, and costs nobody else
anything.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from inflight.core.events import Event, FinishedEvent, TokensEvent
from inflight.core.request import RequestRefused
from inflight.core.stopping import Finish
from inflight.engine.bridge import AsyncBridge, EngineStopped, EventStream
from inflight.frontend.outputs import CompletionOutput, OutputCollector
from inflight.server.asking import Call
from inflight.server.errors import ApiError, refused
from inflight.server.logprobs import TokenNames
from inflight.server.shapes import Change, ChatShape, CompletionShape, Shape, chat_extras, usage
from inflight.text import Tokenizer

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which readers pass over


class Generation:
    """One call that the engine has accepted. Close it, or the engine goes on."""

    def __init__(self, call: Call, stream: EventStream, tokenizer: Tokenizer | None, names: TokenNames, timeout: float):
        """timeout: seconds from now after which the call is ended."""
        self.call = call
        self._stream = stream
        self._names = names
        self._until = time.monotonic() + timeout
        self._timeout = timeout
        self.collectors = {
            request.request_id: OutputCollector(request, tokenizer, prompt)
            for request, prompt in zip(call.requests, call.prompts, strict=True)
        }
        self._first_index = {request.request_id: number * call.n for number, request in enumerate(call.requests)}
        self.error: ApiError | None = None  # told within the stream
        self._ended: set[int] = set()  # choices whose last frame is made
        self._output_tokens = 0

    async def close(self) -> None:
        await self._stream.aclose()

    @property
    def output_tokens(self) -> int:
        """Of everything that was drawn, shown or not."""
        return self._output_tokens

    @property
    def finish_reasons(self) -> list[str]:
        return [one.finish_reason or "abort" for output in self._outputs() for one in output]

    # -- whole ----------------------------------------------------------------------------------------------------

    async def answer(self) -> dict[str, Any]:
        """Everything at the end. Raises ApiError."""
        while not self._stream.ended:
            for event in await self._take(None):
                self._collect(event)
        choices: list[dict[str, Any]] = []
        for collector, outputs in zip(self.collectors.values(), self._outputs(), strict=True):
            self._check(outputs)
            for one in _best(outputs, self.call.n):
                choices.append(self._shape(collector, len(choices)).whole(one))
        collectors = list(self.collectors.values())
        answer = self._envelope(self._shape(collectors[0], 0).name)
        answer["choices"] = choices
        answer["usage"] = self._usage()
        answer.update(chat_extras(self.call, collectors[0], self._names))
        return answer | self._timings()

    # -- frames ---------------------------------------------------------------------------------------------------

    async def frames(self, keep_alive: float) -> AsyncGenerator[bytes, None]:
        """Server-sent events. What goes wrong is told in the stream, because its status is long gone."""
        try:
            async for frame in self._frames(keep_alive):
                yield frame
        except ApiError as error:
            self.error = error
            yield _data(error.body)
        yield DONE

    async def _frames(self, keep_alive: float) -> AsyncGenerator[bytes, None]:
        shapes: dict[int, Shape] = {}
        begun: set[int] = set()
        while not self._stream.ended:
            events = await self._take(keep_alive)
            if not events:
                yield ALIVE
                continue
            choices = []
            for index, (collector, change) in self._fold(events).items():
                shape = shapes.setdefault(index, self._shape(collector, index))
                if index not in begun:
                    begun.add(index)
                    first = shape.first()
                    choices += [] if first is None else [first]
                if change.text or change.finish_reason or self.call.logprobs is not None or self.call.return_token_ids:
                    choices.append(shape.part(change))
            yield b"".join(self._frame(choice, shapes) for choice in choices)
            if self._stream.ended:
                for outputs in self._outputs():
                    self._check(outputs)
        if self.call.include_usage:
            frame = self._envelope(self._frame_name())
            yield _data({**frame, "choices": [], "usage": self._usage(), **self._timings()})

    def _frame(self, choice: dict[str, Any], shapes: dict[int, Shape]) -> bytes:
        frame = self._envelope(self._frame_name())
        frame["choices"] = [choice]
        if self.call.include_usage or self.call.continuous_usage:
            frame["usage"] = self._usage() if self.call.continuous_usage else None
        if choice["finish_reason"] is not None and not self.call.include_usage and self._stream.ended:
            frame |= self._timings()
        return _data(frame)

    def _fold(self, events: list[Event]) -> dict[int, tuple[OutputCollector, Change]]:
        """By choice, what these events add to it."""
        changes: dict[int, tuple[OutputCollector, Change]] = {}
        for event in events:
            collector, first = self.collectors[event.request_id], self._first_index[event.request_id]
            sample, text = self._collect(event)
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

    async def _take(self, keep_alive: float | None) -> list[Event]:
        """What has happened since; nothing, when it is time for a sign of life."""
        left = self._until - time.monotonic()
        try:
            events = await self._stream.take(left if keep_alive is None else min(left, keep_alive))
        except EngineStopped as fault:
            raise ApiError(500, str(fault), type="server_error", code="engine_stopped") from None
        if not events and time.monotonic() >= self._until:
            await self.close()
            raise ApiError(
                408,
                f"The call took longer than {self._timeout:g} s, the server's limit (--request-timeout); ask for fewer "
                "tokens, or try again when less is going on.",
                type="timeout_error",
                code="request_timeout",
            )
        return events

    def _collect(self, event: Event) -> tuple[int, str]:
        if isinstance(event, TokensEvent):
            self._output_tokens += len(event.token_ids)
        return self.collectors[event.request_id].take(event)

    def _outputs(self) -> list[list[CompletionOutput]]:
        return [collector.output().outputs for collector in self.collectors.values()]

    def _check(self, outputs: list[CompletionOutput]) -> None:
        for one in outputs:
            if one.finish_reason == "error":
                raise ApiError(500, one.detail or "The step failed.", type="server_error", code="step_failed")
            if one.finish_reason == "abort":
                raise ApiError(503, "The request was ended by the server.", type="server_error", code="aborted")

    def _shape(self, collector: OutputCollector, index: int) -> Shape:
        kind = ChatShape if self.call.kind == "chat" else CompletionShape
        return kind(self.call, index, collector, self._names)

    def _frame_name(self) -> str:
        return ChatShape.frame_name if self.call.kind == "chat" else CompletionShape.frame_name

    def _envelope(self, name: str) -> dict[str, Any]:
        call = self.call
        return {
            "id": call.call_id,
            "object": name,
            "created": call.created,
            "model": call.model,
            "service_tier": call.tier,
        }

    def _usage(self) -> dict[str, Any]:
        return usage(list(self.collectors.values()), self._output_tokens)

    def _timings(self) -> dict[str, Any]:
        """One account for one prompt; a list for several."""
        if not self.call.timings:
            return {}
        timings = [one.timings.to_json() for one in self.collectors.values() if one.timings is not None]
        return {"timings": timings[0] if len(self.collectors) == 1 else timings}


async def open_generation(
    bridge: AsyncBridge, call: Call, tokenizer: Tokenizer | None, names: TokenNames, timeout: float
) -> Generation:
    """Hand the call to the engine. Raises ApiError when it is refused."""
    try:
        stream = await bridge.open(*call.requests)
    except RequestRefused as refusal:
        raise refused(refusal, call.prompt_field) from None
    except EngineStopped as fault:
        raise ApiError(500, str(fault), type="server_error", code="engine_stopped") from None
    return Generation(call, stream, tokenizer, names, timeout)


def _best(outputs: list[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The n samples with the highest log-probability per token, the best first; all of them, in order, if n is all."""
    if len(outputs) == n:
        return outputs

    def per_token(one: CompletionOutput) -> float:
        return (one.cumulative_logprob or 0.0) / max(1, len(one.token_ids))

    return heapq.nlargest(n, outputs, key=per_token)


def _data(frame: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n"
