"""Answers of /v1/responses: one object, or numbered events that end with it.

Only the items of a stream are retained, which the last event holds once more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, cast

from msgspec import Raw, Struct, structs

from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import (
    AnswerDelta,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
    joined_deltas,
)
from inflight.server.common.answers import DONE, Change, Choice, TokenUsage
from inflight.server.common.logprobs import TokenNames, chat_logprobs, encode
from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError
from inflight.server.openai.responses.schema import (
    PREFIX,
    CachedTokens,
    IncompleteDetails,
    ReasoningTokens,
    Response,
    ResponseUsage,
    State,
    decode_echoed,
)

Json = dict[str, Any]
ItemKind = Literal["reasoning", "message", "function_call"]
Status = Literal["in_progress", "completed", "incomplete"]
_PREFIXES: dict[ItemKind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_EVENTS: dict[ItemKind, str] = {  # of a kind of item: what its text's events are called
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class OutputItem(Struct):
    """text: so far; of a call its arguments. logprobs: JSON, of a message's tokens. call: which of the answer's calls
    it is."""

    kind: ItemKind
    id: str
    index: int
    pieces: list[str] = []
    logprobs: list[Raw] = []
    call: int = 0
    call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str, logprobs: Sequence[Raw] = ()) -> Json:
        """Return the one part of the item's content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

    def shown(self, status: Status) -> Json:
        """Return the item as it stands in the output. One in progress is empty: events bring its content."""
        begun: Json = {"id": self.id, "type": self.kind, "status": status}
        has_begun = status == "in_progress"
        if self.kind == "function_call":
            arguments = "" if has_begun else self.text
            return begun | {"call_id": self.call_id, "name": self.name, "arguments": arguments}
        content = [] if has_begun else [self.part(self.text, self.logprobs)]
        if self.kind == "reasoning":
            return begun | {"summary": [], "content": content}
        return begun | {"role": "assistant", "content": content}


class Output:
    """Items so far. The last one is open until the next begins."""

    def __init__(self, own_id: str):
        """own_id: of the response, without its prefix; items are called after it."""
        self._own_id = own_id
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._last_status: Status = "completed"

    def push(self, delta: AnswerDelta, logprobs: Sequence[Raw] = ()) -> list[Json]:
        """Return the events that report a delta. logprobs: of tokens of the content."""
        events, item = self._item_of(delta)
        added = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        if not added and not logprobs:
            return events
        item.pieces.append(added)
        event: Json = {"type": f"{_EVENTS[item.kind]}.delta", **_place(item), "delta": added}
        if item.kind == "message":
            item.logprobs += logprobs
            event["logprobs"] = list(logprobs)
        return [*events, event]

    def finish(self, cut_off: bool) -> list[Json]:
        """Close the last item, and return the events that report it. An empty answer is an empty message.

        Args:
            cut_off: The last item is not whole.
        """
        events: list[Json] = []
        if not cut_off and all(item.kind == "reasoning" for item in self._items):
            events += self._item_of(ContentDelta(""))[0]
        self._last_status = "incomplete" if cut_off else "completed"
        return events + self._close(self._last_status)

    def shown(self) -> list[Json]:
        """Return all items, once the output is finished."""
        statuses: list[Status] = ["completed"] * len(self._items)
        if statuses:
            statuses[-1] = self._last_status
        return [item.shown(status) for item, status in zip(self._items, statuses, strict=True)]

    def _item_of(self, delta: AnswerDelta) -> tuple[list[Json], OutputItem]:
        kind, item = _kind_of(delta), self._open
        if item is not None and item.kind == kind and item.call == _call_of(delta):
            return [], item
        events = self._close("completed")
        item = self._new(kind, delta)
        events.append(
            {"type": "response.output_item.added", "output_index": item.index, "item": item.shown("in_progress")}
        )
        if kind != "function_call":
            events.append({"type": "response.content_part.added", **_place(item), "part": item.part("")})
        return events, item

    def _new(self, kind: ItemKind, delta: AnswerDelta) -> OutputItem:
        index = len(self._items)
        item = OutputItem(kind, f"{_PREFIXES[kind]}_{self._own_id}_{index}", index)
        if isinstance(delta, ToolCallDelta):
            item.call, item.call_id, item.name = delta.index, delta.call_id or item.id, delta.name or ""
        self._items.append(item)
        self._open = item
        return item

    def _close(self, status: Status) -> list[Json]:
        item, self._open = self._open, None
        if item is None:
            return []
        done: Json = {"type": f"{_EVENTS[item.kind]}.done", **_place(item)}
        events = [done]
        if item.kind == "function_call":
            done |= {"name": item.name, "arguments": item.text}
        else:
            done["text"] = item.text
            if item.kind == "message":
                done["logprobs"] = item.logprobs
            part = item.part(item.text, item.logprobs)
            events.append({"type": "response.content_part.done", **_place(item), "part": part})
        events.append({"type": "response.output_item.done", "output_index": item.index, "item": item.shown(status)})
        return events


def _kind_of(delta: AnswerDelta) -> ItemKind:
    if isinstance(delta, ReasoningDelta):
        return "reasoning"
    return "function_call" if isinstance(delta, ToolCallDelta) else "message"


def _place(item: OutputItem) -> Json:
    place: Json = {"item_id": item.id, "output_index": item.index}
    return place if item.kind == "function_call" else {**place, "content_index": 0}


def _call_of(delta: AnswerDelta) -> int:
    return delta.index if isinstance(delta, ToolCallDelta) else 0


_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponsesSerializer:
    """A `KeepableSerializer`. There is one choice."""

    alive, shows_usage = b": waiting\n\n", False

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._names = call, names
        self._params = collectors[0].request.params
        self._echoed = structs.asdict(decode_echoed(call.echoed))
        self._output = Output(call.call_id.removeprefix(PREFIX))
        self._events = 0  # so far: their numbers
        self._finish_reason: str | None = None
        self._kept = b""
        self._pending: list[Raw] = []  # log-probabilities of tokens whose text has not come yet

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        (choice,) = choices
        assert choice.answer is not None, "a conversation's answers are parsed"
        self._pending = self._logprobs(choice.output.token_logprobs or ())
        for delta in choice.answer.deltas():
            self._push(delta)
        self._finish_reason = choice.output.finish_reason
        self._output.finish(self._is_cut_off)
        return encode(self._response(self._ended_state, usage))

    # -- events -------------------------------------------------------------------------------------------------------

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        events: list[Json] = [] if self._events else self._opening()
        for change in changes:
            self._pending += self._logprobs(change.logprobs)
            for delta in joined_deltas(change.deltas):
                events += self._push(delta)
            if change.finish is not None:
                self._finish_reason = change.finish.reason
                events += self._output.finish(self._is_cut_off)
        return b"".join(map(self._event, events))

    def end(self, usage: TokenUsage) -> bytes:
        return self._event({"type": f"response.{self._ended_state}", "response": Raw(self.kept(usage))}) + DONE

    def kept(self, usage: TokenUsage) -> bytes:
        if not self._kept:
            self._kept = encode(self._response(self._ended_state, usage))
        return self._kept

    def failed(self, error: ApiError) -> bytes:
        failure: Json = {"code": _CODES.get(error.status, "server_error"), "message": error.message}
        if not self._events:
            return self._event({"type": "error", **failure, "code": error.code, "param": error.param}) + DONE
        return self._event({"type": "response.failed", "response": self._response("failed", None, failure)}) + DONE

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
        logprobs, self._pending = self._pending[:tokens], self._pending[tokens:]
        return self._output.push(delta, logprobs)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[Raw]:
        if self._call.logprobs is None or not entries:
            return []
        content: list[Raw] = chat_logprobs(entries, self._names)["content"]
        return content

    def _response(self, state: State, usage: TokenUsage | None, error: Json | None = None) -> Response:
        call, has_ended = self._call, state in ("completed", "incomplete")
        return Response(
            id=call.call_id,
            object="response",
            created_at=call.created,
            completed_at=int(time.time()) if state == "completed" else None,
            status=state,
            background=False,
            error=error,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if state == "incomplete" else None,
            model=call.model,
            output=cast(Any, self._output.shown() if has_ended else []),
            service_tier=call.tier,
            temperature=self._params.temperature,
            top_p=self._params.top_p,
            presence_penalty=self._params.presence_penalty,
            frequency_penalty=self._params.frequency_penalty,
            usage=None if usage is None else _usage(usage),
            **self._echoed,
        )


def _usage(usage: TokenUsage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens, cache_write_tokens=0),
        output_tokens=usage.output_tokens,
        output_tokens_details=ReasoningTokens(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.output_tokens,
    )
