"""The order of an answer's parts: as the model wrote them, whole and streamed alike, at each endpoint that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.core.types.events import Finish, TokensEvent
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.parsers.parser_choice import Tool
from inflight.server.common.prepared import Call
from inflight.server.openai.responses.schema import EchoedFields, encode_echoed
from tests.server.answers import Words, call, end, events, frames_of, whole
from tests.server.marked_parser import MarkedChoice

ANSWER = ["<r>", "why", "</r>", "Hi", "<c>", "f", "{}", "</c>", "so", "<c>", "f", "{", "}", "</c>", "<r>", "hm", "</r>"]
_WORDS = ("<r>", "</r>", "<c>", "</c>", "f", "{}", "a", "b ", "")


def of_kind(kind: str, words: Sequence[str], parallel: bool = True, **more: Any) -> Call:
    parsing = Words(MarkedChoice(), (Tool("f"),), parallel=parallel, words=tuple(words))
    return call(list(words), kind=kind, echoed=encode_echoed(EchoedFields()), parsing=parsing, **more)


def blocks_of(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a client of /v1/messages puts them together."""
    blocks: list[dict[str, Any]] = []
    for one in sent:
        if one["type"] == "content_block_start":
            blocks.append(
                one["content_block"] | {"input": ""} if "input" in one["content_block"] else one["content_block"]
            )
        elif one["type"] == "content_block_delta":
            name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
            kind = one["delta"]["type"]
            if kind in name:
                field = "input" if kind == "input_json_delta" else name[kind]
                blocks[one["index"]][field] += one["delta"][name[kind]]
    return blocks


def plain(parts: list[dict[str, Any]]) -> list[str]:
    """Kinds and texts: ids are drawn, and an input that is no object is shown otherwise where it is whole."""
    kinds = []
    for one in parts:
        text = one.get("text") or one.get("thinking") or one.get("arguments")
        for part in one.get("content") or ():
            text = part["text"]
        if one["type"] == "tool_use":
            text = one["input"] if isinstance(one["input"], str) else json.dumps(one["input"])
            text = re.sub(r'^\{"INVALID_JSON": (.*)\}$', lambda found: json.loads(found.group(1)), text) or "{}"
        kinds.append(f"{one['type']}: {text or ''}")
    return kinds


def test_text_after_a_call_is_shown_after_it() -> None:
    taken = [*events(len(ANSWER)), end()]
    items = whole(of_kind("responses", ANSWER), taken)["output"]
    kinds = ["reasoning", "message", "function_call", "message", "function_call", "reasoning"]
    assert [item["type"] for item in items] == kinds
    assert [item["content"][0]["text"] for item in items if "content" in item] == ["why", "Hi", "so", "hm"]
    blocks = whole(of_kind("messages", ANSWER), taken)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "text", "tool_use", "thinking"]
    message = whole(of_kind("chat", ANSWER), taken)["choices"][0]["message"]
    assert (message["content"], message["reasoning"], len(message["tool_calls"])) == ("Hiso", "whyhm", 2)


@pytest.mark.parametrize("parallel", [True, False])
@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from(_WORDS), min_size=1, max_size=14), each=st.integers(1, 14))
def test_streams_send_the_same_parts_in_the_same_order(parallel: bool, words: list[str], each: int) -> None:
    taken = [*events(len(words)), end()]
    for kind in ("responses", "messages"):
        answer = whole(of_kind(kind, words, parallel), taken)
        steps = [[one] for one in [*events(len(words), each=each), end()]]
        sent = frames_of(of_kind(kind, words, parallel), steps)
        if kind == "messages":
            assert plain(blocks_of(sent)) == plain(answer["content"])
        else:
            done = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
            assert plain(done) == plain(answer["output"]) == plain(sent[-1]["response"]["output"])


def test_log_probabilities_stand_with_the_text_that_they_are_of() -> None:
    words = ["Hi", "<c>", "f", "{}", "</c>", "so", "so"]
    one = of_kind("responses", words, logprobs=0)
    scored = [
        TokensEvent("r", 0, (65,), (TokenLogprob(65, -float(number), ()),), Finish("stop") if number == 6 else None)
        for number in range(len(words))
    ]
    items = whole(one, [*scored, end()])["output"]
    scores = [[entry["logprob"] for entry in item["content"][0]["logprobs"]] for item in items if "content" in item]
    assert scores == [[0.0], [-5.0, -6.0]]
