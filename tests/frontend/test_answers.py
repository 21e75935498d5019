"""An answer is split token by token into content, reasoning and calls, also when a parser fails."""

from __future__ import annotations

import re

import pytest

from inflight.build import BUILT_IN
from inflight.core.types.events import Finish, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams, TokenLogprob
from inflight.frontend.answers import AnswerParsing, ParsedAnswer, TextSegment, ToolCall
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ContentParser, ToolCallDelta
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.parsers.registry import ChosenParsers
from inflight.text import Tokenizer
from tests.server.marked_parser import MarkedChoice

TOOLS = (Tool("f"), Tool("g"))


def parsed(*texts: str, parallel: bool = True, in_reasoning: bool = False) -> ParsedAnswer:
    answer = AnswerParsing(MarkedChoice(), TOOLS, in_reasoning, parallel).new()
    for text in texts:
        answer.push(text)
    answer.finish("")
    return answer


def test_an_answer_is_split() -> None:
    answer = parsed("<r>", "so", "</r>", "a", "<c>", "f", '{"x":', "1}", "</c>", "b")
    assert (answer.reasoning, answer.content) == ("so", "ab")
    assert [(one.name, one.arguments) for one in answer.calls] == [("f", '{"x":1}')]
    assert answer.reasoning_tokens == 2  # the mark that opens it, and "so"


def test_calls_get_ids_that_stay() -> None:
    answer = AnswerParsing(MarkedChoice(), TOOLS).new()
    deltas = [one for text in ("<c>", "f", "{}", "</c>", "<c>", "g", "</c>") for one in answer.push(text)]
    calls = [one for one in deltas if isinstance(one, ToolCallDelta)]
    ids = [one.call_id for one in calls]
    assert ids[0] == ids[1] == answer.calls[0].call_id != ids[2]
    assert all(re.fullmatch(r"call_\w{24}", one or "") for one in ids)


def test_parts_stand_in_the_order_in_which_they_were_written() -> None:
    words = ("<r>", "so", "</r>", "a", "<c>", "f", "{}", "</c>", "b", "c", "<c>", "g", "</c>", "d")
    taken = [one.name if isinstance(one, ToolCall) else (one.is_reasoning, one.text) for one in parsed(*words).segments]
    assert taken == [(True, "so"), (False, "a"), "f", (False, "bc"), "g", (False, "d")]
    alone = parsed(*words, parallel=False).segments
    assert [one.text for one in alone if isinstance(one, TextSegment)] == ["so", "a", "bcd"]


class Confused(ContentParser):
    """A plugin that returns invalid deltas."""

    def __init__(self, *deltas: object):
        self.deltas = deltas

    def push(self, text: str) -> list[AnswerDelta]:
        return list(self.deltas) if text == "?" else super().push(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "deltas",
    [
        ("text",),
        (ToolCallDelta(1, "f"),),
        (ToolCallDelta(0, "f"), ContentDelta("x"), ToolCallDelta(0, None, "{}")),
        (ToolCallDelta(0, "f"), ToolCallDelta(1, "g"), ToolCallDelta(0, None, "{}")),
    ],
)
def test_a_parser_with_invalid_deltas_is_replaced(deltas: tuple[object, ...]) -> None:
    answer = ParsedAnswer(Confused(*deltas))
    for text in ("a", "?", "b"):
        answer.push(text)
    answer.finish("c")
    assert answer.content == "a?bc" and not answer.calls


def test_without_parallel_calls_only_the_first_is_returned() -> None:
    answer = parsed("<c>", "f", "{}", "</c>", "<c>", "g", "{}", "</c>", "b", parallel=False)
    assert [one.name for one in answer.calls] == ["f"] and answer.content == "b"


def test_a_parser_that_fails_leaves_the_rest_as_content() -> None:
    answer = parsed("<r>", "so", "boom", "<r>", "x")
    assert (answer.reasoning, answer.content) == ("so", "boom<r>x")


def test_a_model_of_which_nothing_is_known_answers_with_content() -> None:
    answer = AnswerParsing().new()
    assert answer.push("<think>") == [ContentDelta("<think>", tokens=1)]
    assert answer.content == "<think>" and answer.reasoning_tokens == 0


def test_tokens_go_with_the_content_that_they_turn_out_to_be() -> None:
    answer = ParsedAnswer(ChosenParsers(ParserNames("hermes")).parser(TOOLS, in_reasoning=False))
    call = ["\n", "<tool", "_call>", '{"name": "f", ', '"arguments": {}}', "</tool_call>"]
    taken = [answer.push(text) for text in ["a", " ", "<to", "ne>", *call, "\nb", "c"]]
    content = [(one.text, one.tokens) for deltas in taken for one in deltas if isinstance(one, ContentDelta)]
    assert content == [("a", 1), (" <tone>", 3), ("\nb", 1), ("c", 1)]


def test_a_collector_shows_log_probabilities_of_the_content_alone() -> None:
    tokenizer = Tokenizer.load(BUILT_IN)
    words = ["so", "b"]
    ids = [tokenizer.encode(word, add_special_tokens=False)[0] for word in words]
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(logprobs=0))
    for deltas_only in (True, False):
        parsing = AnswerParsing(MarkedChoice(), (), True)
        collector = OutputCollector(request, tokenizer, None, deltas_only, parsing)
        scores = tuple(TokenLogprob(one, -1.0, ()) for one in ids)
        collector.take(TokensEvent("r", 0, tuple(ids), scores, Finish("length")))
        assert collector.reasoning_tokens == 2  # nothing has closed it
        shown = collector.added(0).logprobs if deltas_only else collector.completions()[0].token_logprobs
        assert not shown
