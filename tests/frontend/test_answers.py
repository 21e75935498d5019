"""An answer told apart token by token: content, reasoning, calls, and what is told when a parser fails."""

from __future__ import annotations

import re

from inflight.build import BUILT_IN
from inflight.core.types.events import Finish, TokensEvent
from inflight.core.types.logprobs import TokenLogprob
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.frontend.answers import AnswerParsing, ParsedAnswer
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import ContentDelta, ToolCallDelta
from inflight.frontend.parsers.parser_choice import Tool
from inflight.text import Tokenizer
from tests.server.marked_parser import MarkedChoice

TOOLS = (Tool("f"), Tool("g"))


def parsed(*texts: str, parallel: bool = True, in_reasoning: bool = False) -> ParsedAnswer:
    answer = AnswerParsing(MarkedChoice(), TOOLS, in_reasoning, parallel).new()
    for text in texts:
        answer.push(text)
    answer.finish("")
    return answer


def test_an_answer_is_told_apart() -> None:
    answer = parsed("<r>", "so", "</r>", "a", "<c>", "f", '{"x":', "1}", "</c>", "b")
    assert (answer.reasoning, answer.content) == ("so", "ab")
    assert [(one.name, one.arguments) for one in answer.calls] == [("f", '{"x":1}')]
    assert answer.reasoning_tokens == 2  # the mark that opens it, and "so"


def test_calls_get_ids_that_stay() -> None:
    answer = AnswerParsing(MarkedChoice(), TOOLS).new()
    deltas = [one for text in ("<c>", "f", "{}", "</c>", "<c>", "g", "</c>") for one in answer.push(text)[0]]
    calls = [one for one in deltas if isinstance(one, ToolCallDelta)]
    ids = [one.call_id for one in calls]
    assert ids[0] == ids[1] == answer.calls[0].call_id != ids[2]
    assert all(re.fullmatch(r"call_\w{24}", one or "") for one in ids)


def test_without_parallel_calls_the_first_alone_is_told() -> None:
    answer = parsed("<c>", "f", "{}", "</c>", "<c>", "g", "{}", "</c>", "b", parallel=False)
    assert [one.name for one in answer.calls] == ["f"] and answer.content == "b"


def test_a_parser_that_fails_leaves_the_rest_as_content() -> None:
    answer = parsed("<r>", "so", "boom", "<r>", "x")
    assert (answer.reasoning, answer.content) == ("so", "boom<r>x")


def test_a_model_of_which_nothing_is_known_answers_with_content() -> None:
    answer = AnswerParsing().new()
    assert answer.push("<think>") == ([ContentDelta("<think>")], True)
    assert answer.content == "<think>" and answer.reasoning_tokens == 0


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
