"""Reasoning between marks, opened by the model or by the prompt, in front of content and calls."""

from __future__ import annotations

import pytest

from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.frontend.parsers.registry import REASONING, ChosenParsers
from tests.frontend.parsers.examples import CALLS, parsed


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_is_split_off(name: str, opened: bool) -> None:
    marks = REASONING[name]
    text = ("" if opened else marks.begins[0]) + f"\nhm,\nyes\n{marks.ends[0]}\n\nParis."
    for pieces in ([text], list(text)):
        assert parsed(pieces, ParserNames(None, name), in_reasoning=opened) == ("hm,\nyes", "Paris.", [])


def test_a_model_that_repeats_the_mark_of_its_prompt_is_understood() -> None:
    assert parsed(["<think>hm</think>x"], ParserNames(None, "qwen3"), in_reasoning=True) == ("hm", "x", [])


def test_an_answer_without_reasoning_is_content() -> None:
    text = " No <think> needed.\n"
    assert parsed([text], ParserNames(None, "qwen3")) == ("", text, [])


def test_reasoning_that_the_end_cuts_off_is_reasoning() -> None:
    assert parsed(["<think>hm, I ", "thi"], ParserNames(None, "qwen3")) == ("hm, I thi", "", [])


def test_calls_are_looked_for_behind_the_reasoning_alone() -> None:
    text = f"<think>{CALLS['hermes']}</think>\n{CALLS['hermes']}"
    reasoning, content, calls = parsed([text], ParserNames("hermes", "qwen3"))
    assert (reasoning, content) == (CALLS["hermes"], "Let me look.")
    assert [name for name, _ in calls] == ["get_weather", "now"]


def test_whether_a_token_is_one_of_the_reasoning_is_known_after_each() -> None:
    parser = ChosenParsers(ParserNames(None, "qwen3")).parser((), in_reasoning=False)
    seen = []
    for piece in ("<think>", "hm", "</think>", "x"):
        parser.push(piece)
        seen.append(parser.in_reasoning)
    assert seen == [True, True, False, False]


def test_the_analysis_of_harmony_is_reasoning() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|return|>"
    for pieces in ([text], list(text)):
        assert parsed(pieces, ParserNames("openai", "openai_gptoss")) == ("hm", "Paris.", [])


def test_prompts_that_end_within_reasoning() -> None:
    chosen = ChosenParsers(ParserNames(None, "qwen3"))
    assert chosen.opens_in_prompt("<|im_start|>assistant\n<think>\n")
    assert not chosen.opens_in_prompt("<|im_start|>assistant\n<think>\n\n</think>\n\n")
