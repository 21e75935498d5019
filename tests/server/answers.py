"""Builders of answers for tests: calls, events, serializers, and frames as their clients read them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeVar

from inflight.build import BUILT_IN
from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.core.types.timings import Timings
from inflight.frontend.answers import AnswerParsing
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta
from inflight.frontend.parsers.parser_choice import Tool
from inflight.server.common.answers import AnswerSerializer, Change, ResponseBuilder, TokenUsage
from inflight.server.common.logprobs import TokenNames
from inflight.server.common.prepared import Call
from inflight.server.tenants import ANYONE
from inflight.text import Tokenizer
from tests.server.marked_parser import MarkedChoice

TIMINGS = Timings(1, 2, 3, 0, 0, 6, 2.5, 1, 0, 0, None, None, "interactive")
TOKENIZER = Tokenizer.load(BUILT_IN)
NO_USAGE, SOME_USAGE = TokenUsage(7, 0), TokenUsage(7, 5, cached_tokens=4, reasoning_tokens=2)
S = TypeVar("S", bound=AnswerSerializer)


class Words(AnswerParsing, frozen=True):
    """Its parser is given the words of an answer in turn, one for each token."""

    words: tuple[str, ...] = ()

    def new(self) -> Any:
        answer, words = super().new(), iter(self.words)
        push = answer.push
        answer.push = lambda text: push(next(words))  # type: ignore[method-assign]
        return answer


def call_of(request: Request, kind: str = "chat", **fields: Any) -> Call:
    """Return a stream's call of one request."""
    made = Call(
        kind=kind, call_id="c", created=0, model="m", requests=(request,), prompts=(None,), n=request.params.n,
        tier="default", tenant=ANYONE, stream=True,
    )  # fmt: skip
    return replace(made, **fields)


def call(words: list[str], n: int = 1, **more: Any) -> Call:
    """Return a call whose answers are parsed, of these words."""
    request = Request(request_id="r", prompt_token_ids=(1, 2), params=SamplingParams(n=n))
    return call_of(request, **{"parsing": Words(MarkedChoice(), (Tool("f"),), words=tuple(words)), **more})


def events(count: int, sample: int = 0, reason: str = "stop", each: int = 1) -> list[Event]:
    steps = [min(each, count - begun) for begun in range(0, count, each)]
    made: list[Event] = [TokensEvent("r", sample, (65,) * step, None, None) for step in steps[:-1]]
    finish = Finish(reason, stopped_by=None)  # type: ignore[arg-type]
    return [*made, TokensEvent("r", sample, (65,) * steps[-1], None, finish)]


def end(n: int = 1, reason: str = "stop") -> Event:
    return FinishedEvent("r", (Finish(reason),) * n, TIMINGS)  # type: ignore[arg-type]


def frames_of(one: Call, steps: list[list[Event]]) -> list[Any]:
    """Return the data of a stream's events, but for its mark of the end."""
    collector = OutputCollector(one.requests[0], TOKENIZER, None, True, one.parsing)
    builder = ResponseBuilder(one, {"r": collector}, TokenNames(None))
    frames = b"".join([*[builder.frames(step) for step in steps], builder.last_frames()]).decode().split("\n\n")
    assert frames.pop() == ""
    return [json.loads(frame.split("data: ")[1]) for frame in frames if frame != "data: [DONE]"]


def whole(one: Call, taken: list[Event]) -> dict[str, Any]:
    collector = OutputCollector(one.requests[0], TOKENIZER, None, False, one.parsing)
    builder = ResponseBuilder(one, {"r": collector}, TokenNames(None))
    for event in taken:
        builder.take(event)
    answer: dict[str, Any] = json.loads(builder.answer())
    return answer


def serializer_of(serializer: type[S], params: SamplingParams, **fields: Any) -> tuple[S, OutputCollector]:
    """Return a serializer and the collector of its one prompt."""
    request = Request(request_id="r-0", prompt_token_ids=(1, 2, 3), params=params)
    collector = OutputCollector(request, None)
    return serializer(call_of(request, **fields), [collector], TokenNames(None)), collector


def named_events(frames: bytes) -> list[dict[str, Any]]:
    """Return the data of events, whose names are their types."""
    found = []
    for frame in frames.decode().strip().split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def stream_of(
    writer: AnswerSerializer, collector: OutputCollector, deltas: list[AnswerDelta], finish: Finish, usage: TokenUsage
) -> list[dict[str, Any]]:
    """Return the events of a stream that brings these deltas one by one."""
    frames = b""
    for number, delta in enumerate(deltas):
        frames += writer.frames([Change(0, collector, begins=not number, deltas=[delta])], NO_USAGE, usage, False)
    frames += writer.frames([Change(0, collector, finish=finish)], usage, usage, True)
    return named_events(frames + writer.end(usage))
