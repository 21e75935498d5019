"""Which parsers a model's answers get: by its template, by its family, by name, from a plugin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inflight.frontend.parsers.answer_parser import ContentDelta, ContentParser
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.parsers.registry import TOOL_FORMATS, ChosenParsers, ParserError, choose
from tests.frontend.parsers.examples import CALLS

_QWEN3 = "{% if tools %}<tool_call></tool_call>{% endif %}<think></think>{{ enable_thinking }}"


class Shouting(ContentParser):
    def __init__(self, tools: Sequence[Tool]):
        self.tools = tools

    def push(self, text: str) -> list[ContentDelta]:  # type: ignore[override]
        return [ContentDelta(text.upper())]


# What the families' own templates hold of calls and reasoning: the marks, as they are spelled there.
_TEMPLATES = {
    "Qwen2.5": ('<tools></tools><tool_call>\n{"name": ...}</tool_call>', "qwen2", "hermes", None),
    "Qwen3": (
        "<tools></tools><tool_call></tool_call><tool_response><think></think>enable_thinking",
        "qwen3",
        "hermes",
        "qwen3",
    ),
    "Qwen3-Coder": (
        "<tool_call>\n<function=example><parameter=a></parameter></function></tool_call>",
        "qwen3_moe",
        "qwen3_coder",
        None,
    ),
    "Qwen3.5": (
        "<tool_call>\n<function=x>\n<parameter=p></parameter><think></think>enable_thinking",
        "qwen3_5",
        "qwen3_coder",
        "qwen3",
    ),
    "Llama 3.1": (
        '{"name": function name, "parameters": dictionary}<|python_tag|><|eom_id|><|eot_id|>',
        "llama",
        "llama3_json",
        None,
    ),
    "Llama 4": ("<|python_start|><|python_end|><|eot|>", "llama4", "llama4_pythonic", None),
    "Mistral 7B v0.3": (
        "[AVAILABLE_TOOLS][/AVAILABLE_TOOLS][TOOL_CALLS] [[TOOL_RESULTS]",
        "mistral",
        "mistral_list",
        None,
    ),
    "Magistral": ("[AVAILABLE_TOOLS][TOOL_CALLS][ARGS][TOOL_RESULTS][THINK][/THINK]", "mistral", "mistral", "mistral"),
    "Gemma 4": (
        '<|tool>declaration:<tool|><|tool_call>call:<tool_call|><|"|><|channel>thought\n<channel|>',
        "gemma4",
        "gemma4",
        "gemma4",
    ),
    "FunctionGemma": (
        "<start_function_declaration><start_function_call>call:<end_function_call><escape>",
        "gemma3",
        "functiongemma",
        None,
    ),
    "gpt-oss": (
        "<|start|>assistant<|channel|>commentary to=functions.<|constrain|>json<|message|><|call|>",
        "gpt_oss",
        "openai",
        "openai_gptoss",
    ),
    "GLM-4.5": (
        "<tool_call>{function-name}<arg_key></arg_key><arg_value></arg_value></tool_call><think></think>",
        "glm4_moe",
        "glm45",
        "glm45",
    ),
    "DeepSeek V3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>```json<｜tool▁call▁end｜>",
        "deepseek_v3",
        "deepseek_v3",
        None,
    ),
    "DeepSeek V3.1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜><think></think>",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_r1",
    ),
    "Granite 3": ("<|tool_call|>[]", "granite", "phi4_mini_json", None),
    "MiniMax-M2": (
        '<minimax:tool_call><invoke name="tool"><parameter name="p"></parameter></invoke><think></think>',
        "minimax_m2",
        "minimax_m2",
        "minimax_m2",
    ),
    "Seed-OSS": (
        "<seed:tool_call><function=f><parameter=p></parameter></function><seed:think></seed:think>",
        "seed_oss",
        "seed_oss",
        "seed_oss",
    ),
}


_OF_FAMILY = ("glm45", "deepseek_r1", "minimax_m2")  # names of the same marks, which the family distinguishes


@pytest.mark.parametrize("model", _TEMPLATES)
def test_parsers_are_chosen_by_the_familys_marks(model: str) -> None:
    marks, family, tools, reasoning = _TEMPLATES[model]
    for of_family in (family, None):
        chosen = choose("{%- if tools %}" + marks, of_family, ParserNames())
        assert chosen.names.tools == tools
        assert chosen.names.reasoning == (reasoning if of_family or reasoning not in _OF_FAMILY else "qwen3")


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_formats_marks_are_in_its_forced_call_and_choose_it(name: str) -> None:
    one = TOOL_FORMATS[name]
    example = CALLS["qwen3_coder" if name == "qwen3_xml" else name]
    assert any(mark in example for mark in one.marks) or name in ("llama3_json", "generic")  # whose tag may be left out
    chosen = choose("{% if tools %}" + "".join(one.in_template), None, ParserNames()).names.tools
    assert chosen == ("qwen3_coder" if name == "qwen3_xml" else name)
    assert set(one.marks) <= set(ChosenParsers(ParserNames(name)).visible_marks)


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
        ("{{ messages }}", "llama", "generic", None),
        ("{{ tools }}", "llama", "generic", None),
        (None, None, None, None),
    ],
)
def test_parsers_are_chosen_by_the_template(
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


def test_marks_and_ends_are_listed() -> None:
    chosen = choose(_QWEN3, "qwen3", ParserNames())
    assert {"<think>", "</think>", "<tool_call>", "</tool_call>"} <= set(chosen.visible_marks)
    assert chosen.reasoning_ends == ("<think>", "</think>")
    assert choose("{{ messages }}", "llama", ParserNames()).reasoning_ends is None
