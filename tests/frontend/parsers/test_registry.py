"""Which parsers a model's answers get: by its template, by its family, by name, from a plugin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inflight.frontend.parsers.answer_parser import ContentDelta
from inflight.frontend.parsers.content import ContentParser
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.parsers.registry import ParserError, choose

_QWEN3 = "{% if tools %}<tool_call></tool_call>{% endif %}<think></think>{{ enable_thinking }}"


class Shouting(ContentParser):
    def __init__(self, tools: Sequence[Tool]):
        self.tools = tools

    def push(self, text: str) -> list[ContentDelta]:  # type: ignore[override]
        return [ContentDelta(text.upper())]


@pytest.mark.parametrize(
    ("template", "family", "tools", "reasoning"),
    [
        (_QWEN3, "qwen3", "hermes", "qwen3"),
        ("{{ tools }}<tool_call><function=x>", "qwen3_moe", "qwen3_coder", None),
        ("{{ tools }}<tool_call><arg_key></think>", "glm4_moe", "glm45", "glm45"),
        ("{{ tools }}[TOOL_CALLS][ARGS][THINK]", "mistral", "mistral", "mistral"),
        ("{{ tools }}[TOOL_CALLS]", "mistral", "mistral_list", None),
        ("{{ tools }}<|tool_call>call:<|channel>thought", "gemma4", "gemma4", "gemma4"),
        ("{{ tools }}<|start|><|channel|><|message|>", "gpt_oss", "openai", "openai_gptoss"),
        ("{{ tools }}{{ '\"parameters\": ' }}<|eot_id|>", "llama", "llama3_json", None),
        ("<|tool|>{{ message['tools'] }}", "phi3", "phi4_mini_json", None),
        ("{{ tools }}", "qwen2", "hermes", None),
        ("{{ messages }}", "llama", None, None),
        (None, None, None, None),
    ],
)
def test_a_template_tells_its_parsers(
    template: str | None, family: str | None, tools: str | None, reasoning: str | None
) -> None:
    assert choose(template, family, ParserNames()).names == ParserNames(tools, reasoning)


def test_names_override_the_template() -> None:
    assert choose(_QWEN3, "qwen3", ParserNames("mistral", "none")).names == ParserNames("mistral", None)


@pytest.mark.parametrize("asked", [ParserNames("herms"), ParserNames(None, "think"), ParserNames("no.module:Class")])
def test_unknown_names_are_refused_in_words(asked: ParserNames) -> None:
    with pytest.raises(ParserError, match=r"herms|think|no\.module"):
        choose("", None, asked)


def test_a_plugin_parses_answers() -> None:
    chosen = choose("", None, ParserNames(f"{__name__}:Shouting"))
    assert chosen.parser((Tool("f"),), in_reasoning=False).push("ab") == [ContentDelta("AB")]


def test_marks_and_ends_are_told() -> None:
    chosen = choose(_QWEN3, "qwen3", ParserNames())
    assert {"<think>", "</think>", "<tool_call>", "</tool_call>"} <= set(chosen.visible_marks)
    assert chosen.reasoning_end == "</think>" and chosen.reasons_unasked
    assert not choose(_QWEN3.replace("enable_thinking", "x"), "qwen3", ParserNames()).reasons_unasked
