"""The response object and the ends of a stream, from changes as the builder folds them."""

from __future__ import annotations

from typing import Any

from inflight.core.types.events import Finish
from inflight.core.types.sampling import SamplingParams
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.server.common.answers import DONE, Change
from inflight.server.errors import ApiError
from inflight.server.openai.responses.answers import ResponsesSerializer
from inflight.server.openai.responses.schema import EchoedFields, encode_echoed
from tests.server.answers import NO_USAGE, SOME_USAGE, named_events, serializer_of


def ended_events(frames: bytes) -> list[dict[str, Any]]:
    """Return the events before the mark of a stream's end."""
    assert frames.endswith(DONE)
    return named_events(frames.removesuffix(DONE))


def serializer() -> tuple[ResponsesSerializer, OutputCollector]:
    echoed = encode_echoed(EchoedFields(instructions="Be brief.", metadata={"a": "b"}))
    params = SamplingParams(temperature=0.5, max_tokens=9)
    return serializer_of(ResponsesSerializer, params, kind="responses", call_id="resp_r", echoed=echoed)


def test_a_stream_ends_with_the_whole_response() -> None:
    writer, collector = serializer()
    deltas = [ReasoningDelta("Hm"), ReasoningDelta("."), ContentDelta("So"), ToolCallDelta(0, "f", "{}", "call_1")]
    frames = writer.frames([Change(0, collector, begins=True, deltas=deltas)], NO_USAGE, SOME_USAGE, False)
    frames += writer.frames([Change(0, collector, finish=Finish("stop", None))], SOME_USAGE, SOME_USAGE, True)
    sent = ended_events(frames + writer.end(SOME_USAGE))
    assert [one["sequence_number"] for one in sent] == list(range(len(sent)))
    assert [one["type"] for one in sent[:2]] == ["response.created", "response.in_progress"]
    assert sent[0]["response"]["status"] == "in_progress" and sent[0]["response"]["output"] == []
    assert [one["delta"] for one in sent if one["type"] == "response.reasoning_text.delta"] == ["Hm."]
    last = sent[-1]["response"]
    assert sent[-1]["type"] == "response.completed" and last["status"] == "completed" and last["completed_at"]
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
    assert (last["instructions"], last["metadata"], last["temperature"]) == ("Be brief.", {"a": "b"}, 0.5)
    assert last["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


def test_the_length_makes_it_incomplete() -> None:
    writer, collector = serializer()
    change = Change(0, collector, begins=True, deltas=[ContentDelta("So")], finish=Finish("length", None))
    writer.frames([change], NO_USAGE, SOME_USAGE, True)
    (last,) = ended_events(writer.end(SOME_USAGE))
    assert last["type"] == "response.incomplete" and last["response"]["output"][0]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_error_within_a_stream_fails_the_response_and_before_it_is_an_error() -> None:
    error = ApiError(503, "The server was shut down.", type="server_error", code="draining")
    writer, collector = serializer()
    (before,) = ended_events(writer.failed(error))
    assert (before["type"], before["message"], before["code"]) == ("error", "The server was shut down.", "draining")
    writer, collector = serializer()
    writer.frames([Change(0, collector, begins=True, deltas=[ContentDelta("So")])], NO_USAGE, SOME_USAGE, False)
    (failed,) = ended_events(writer.failed(error))
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The server was shut down."}
