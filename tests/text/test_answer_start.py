"""Where stop strings are looked for, against the parser of reasoning: both split a text at the same place."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from inflight.frontend.parsers.answer_parser import ContentDelta, ContentParser
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.frontend.parsers.reasoning import ReasoningParser
from inflight.frontend.parsers.registry import HARMONY_REASONING, REASONING, ChosenParsers
from inflight.text import AnswerStart, TextStream, Tokenizer

from .builders import byte_level

PIECES = ("<think>", "</think>", "<thi", "</thin", "k>", " ", "\n\n", "a", "Here is my response:", "Here is my", "<")


def started(text: str, name: str, is_open: bool, chance: random.Random) -> tuple[str, str]:
    """Cut anywhere."""
    start = AnswerStart(REASONING[name].begins, REASONING[name].ends, is_open)
    cuts = sorted({0, len(text), *(chance.randrange(len(text) + 1) for _ in range(chance.randrange(9)))})
    parts = [start.push(text[begin:end]) for begin, end in pairwise(cuts)]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts) + start.flush()


@pytest.mark.parametrize("name", ["qwen3", "granite"])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_answer_is_what_the_parser_of_reasoning_leaves(name: str, is_open: bool) -> None:
    chance = random.Random(4)
    begin, end = REASONING[name].begins[-1], REASONING[name].ends[-1]
    for _ in range(400):
        text = "".join(chance.choices((*PIECES, begin, end, end[:-1]), k=chance.randrange(8)))
        before, answer = started(text, name, is_open, chance)
        assert before + answer == text
        parser = ReasoningParser(REASONING[name], ContentParser(), is_open)
        deltas = [*parser.push(text), *parser.finish()]
        assert "".join(one.text for one in deltas if isinstance(one, ContentDelta)) == answer, text


@pytest.mark.parametrize("header", ["final<|message|>", "final <|constrain|>json<|message|>"])
def test_stop_strings_of_messages_with_channels_are_of_the_final_one(header: str) -> None:
    marks = ChosenParsers(ParserNames("openai", HARMONY_REASONING)).reasoning_text(is_open=False)
    assert marks is not None
    for text in ("<|channel|>analysis<|message|>x a<|end|><|start|>assistant<|channel|>", "<|channel|>"):
        start = AnswerStart(marks.begins, marks.ends, marks.is_open)
        before, answer = start.push(f"{text}{header}y a")
        assert before.rstrip().endswith("final") and answer.endswith("y a")


@pytest.mark.parametrize(
    ("text", "is_open", "stop", "kept"),
    [
        ("<think>\nx. a\n</think>\n\nb a c", False, " a", "<think>\nx. a\n</think>\n\nb"),
        ("x a</think>b a c", True, " a", "x a</think>b"),
        ("<think>x</think>\n\nb\n\nc", False, "\n\n", "<think>x</think>\n\nb"),
        ("b a c", False, " a", "b"),
        ("<thi a", False, " a", "<thi"),
        ("x a", True, " a", "x a"),
        ("<th", False, "h", "<t"),
        ("x</think>a", True, "k>a", "x</think>a"),
    ],
)
def test_stop_strings_end_the_answer_and_no_reasoning(text: str, is_open: bool, stop: str, kept: str) -> None:
    tokenizer = Tokenizer(byte_level())
    start = AnswerStart(REASONING["qwen3"].begins, REASONING["qwen3"].ends, is_open)
    stream = TextStream(tokenizer, stops=(stop,), answer_start=start)
    given = [stream.push((token_id,)) for token_id in tokenizer.encode(text)]
    assert "".join([*given, stream.finish()]) == stream.text == kept
    assert (stream.stopped_by == stop) == (kept != text)
