"""Register answer parsers under vLLM's names, and choose those of a model by its chat template and family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from inflight.core.types.request import ReasoningText
from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers import xml_calls
from inflight.frontend.parsers.answer_parser import AnswerParser, ContentParser
from inflight.frontend.parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from inflight.frontend.parsers.gemma import FUNCTION_GEMMA, GEMMA4
from inflight.frontend.parsers.generic import GENERIC, GENERIC_NAME
from inflight.frontend.parsers.harmony import HARMONY, REASONING_ENDS, REASONING_TEXT
from inflight.frontend.parsers.hermes import HERMES
from inflight.frontend.parsers.llama3_json import LLAMA3_JSON
from inflight.frontend.parsers.mistral import MISTRAL, MISTRAL_LIST
from inflight.frontend.parsers.parser_choice import ParserNames, ReasoningEnds, Tool, ToolChoice
from inflight.frontend.parsers.phi4_mini import PHI4_MINI
from inflight.frontend.parsers.pythonic import LLAMA4_PYTHONIC
from inflight.frontend.parsers.reasoning import ReasoningMarks, ReasoningParser
from inflight.frontend.parsers.tool_format import ToolFormat

AUTO, NONE = "auto", "none"  # as names: chosen by template and family; none at all

# In the order in which templates are matched: more specific formats first.
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "openai": HARMONY,
    "gemma4": GEMMA4,
    "functiongemma": FUNCTION_GEMMA,
    "mistral": MISTRAL,
    "mistral_list": MISTRAL_LIST,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "minimax_m2": xml_calls.MINIMAX_M2_FORMAT,
    "seed_oss": xml_calls.SEED_OSS_FORMAT,
    "glm45": xml_calls.GLM45_FORMAT,
    "qwen3_coder": xml_calls.QWEN3_CODER_FORMAT,
    "qwen3_xml": xml_calls.QWEN3_CODER_FORMAT,
    "hermes": HERMES,
    "phi4_mini_json": PHI4_MINI,
    "llama4_pythonic": LLAMA4_PYTHONIC,
    "llama3_json": LLAMA3_JSON,
    GENERIC_NAME: GENERIC,
}

_THINK = ReasoningMarks(("<think>",), ("</think>",))
REASONING: Mapping[str, ReasoningMarks] = {
    "gemma4": ReasoningMarks(("<|channel>thought",), ("<channel|>",), ("<|channel>",)),
    "mistral": ReasoningMarks(("[THINK]",), ("[/THINK]",)),
    "seed_oss": ReasoningMarks(("<seed:think>",), ("</seed:think>",)),
    "granite": ReasoningMarks(
        ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
    ),
    "deepseek_r1": _THINK,
    "qwen3": _THINK,
    "glm45": _THINK,
    "minimax_m2": _THINK,
}
HARMONY_REASONING = "openai_gptoss"
REASONING_NAMES = (*REASONING, HARMONY_REASONING)

# For templates without the format's marks: written by hand, or leaving the format to the model.
_BY_FAMILY = {
    "gpt_oss": ParserNames("openai", HARMONY_REASONING),
    "qwen2": ParserNames("hermes"),
    "qwen2_moe": ParserNames("hermes"),
    "qwen3": ParserNames("hermes", "qwen3"),
    "qwen3_moe": ParserNames("hermes", "qwen3"),
    "llama4": ParserNames("llama4_pythonic"),
    "phi3": ParserNames("phi4_mini_json"),  # the template of Phi-4-mini shows tools, but no calls
}
_THINKERS = {"deepseek_v3": "deepseek_r1", "glm4_moe": "glm45", "minimax_m2": "minimax_m2"}


class ParserError(ValueError):
    """Raised for an unknown parser, or for calls that cannot be forced."""


class ChosenParsers:
    """The parsers of one model's answers. mark_ids: ids of added tokens by text, for grammars."""

    def __init__(self, names: ParserNames, mark_ids: Mapping[str, int] | None = None):
        """Look the parsers up. Raises ParserError."""
        self.names = names
        self._mark_ids = mark_ids or {}
        self._format = None if names.tools is None else _tool_format(names.tools)
        self._reasons_itself = names.reasoning == HARMONY_REASONING
        self._marks = None if names.reasoning is None or self._reasons_itself else _reasoning(names.reasoning)

    @property
    def visible_marks(self) -> tuple[str, ...]:
        marks = () if self._marks is None else (*self._marks.begins, *self._marks.ends, *self._marks.tokens)
        ours = HARMONY if self._reasons_itself else self._format
        return (*marks, *(ours.marks if ours is not None else ()))

    @property
    def texts_in_calls(self) -> tuple[str, ...]:
        return () if self._format is None else self._format.in_calls

    @property
    def reasoning_ends(self) -> ReasoningEnds | None:
        if self._reasons_itself:
            return REASONING_ENDS
        return None if self._marks is None else ReasoningEnds(self._marks.begins[0], self._marks.ends[0])

    def reasoning_text(self, is_open: bool) -> ReasoningText | None:
        if self._reasons_itself:
            return REASONING_TEXT
        return None if self._marks is None else ReasoningText(self._marks.begins, self._marks.ends, is_open)

    @property
    def calls_cover_reasoning(self) -> bool:
        return self._format is not None and self._format.reasons

    @property
    def short_call_ids(self) -> bool:
        return self.names.tools in ("mistral", "mistral_list")

    def opens_in_prompt(self, prompt_text: str) -> bool:
        return self._marks is not None and self._marks.open_at_end_of(prompt_text)

    def parser(self, tools: Sequence[Tool], in_reasoning: bool) -> AnswerParser:
        if self._reasons_itself:
            return HARMONY.parser(tools)
        calls: AnswerParser = ContentParser()
        if self._format is not None and (tools or self._format.reasons):
            calls = self._format.parser(tools)
        return calls if self._marks is None else ReasoningParser(self._marks, calls, in_reasoning)

    def grammar_of_calls(self, tools: Sequence[Tool], choice: ToolChoice, content: Grammar | None) -> Grammar | None:
        callable_tools = [tool for tool in tools if not choice.names or tool.name in choice.names]
        forced = choice.mode in ("required", "named")
        strict = choice.mode == "auto" and any(tool.strict for tool in callable_tools)
        always = self._format is not None and self._format.always_constrained
        limited = choice.mode == "auto" and bool(choice.names)  # the prompt shows tools that may not be called
        is_free = not (forced or strict or always or limited or content is not None)
        if choice.mode == "none" or not callable_tools or is_free:
            return content
        if self._format is None or self._format.grammars is None:
            if strict and not (forced or limited) and content is None:
                return None  # `strict` is enforced only where calls can be forced
            raise ParserError(
                f"Calls in the format {self.names.tools} cannot be forced, nor combined with response_format; send "
                "tool_choice auto without response_format."
            )
        grammars = self._format.grammars(self._of_marks())
        if forced:
            return grammars.required(callable_tools, choice)
        if content is None:
            return grammars.free(callable_tools, choice)
        if content.kind not in ("json_schema", "json_object"):
            raise ParserError(
                f"An answer of the kind {content.kind} cannot be combined with tools; give a JSON schema, or "
                "tool_choice none."
            )
        return grammars.or_content(callable_tools, choice, content.source or '{"type": "object"}')

    def _of_marks(self) -> dict[str, int]:
        return {mark: self._mark_ids[mark] for mark in self.visible_marks if mark in self._mark_ids}


def choose(
    template: str | None, family: str | None, asked: ParserNames, mark_ids: Mapping[str, int] | None = None
) -> ChosenParsers:
    """Choose a model's parsers.

    Args:
        template: Source of the chat template.
        family: Name of the model's family.
        asked: Names, `package.module:Class`, "none", or "auto" (also None): chosen by the template, then the family;
            the generic format if neither has one.
        mark_ids: Ids of added tokens by text.

    Raises:
        ParserError: A name is unknown, or a plugin cannot be loaded.
    """
    source, of_family = template or "", _BY_FAMILY.get(family or "", ParserNames())
    tools, reasoning = asked.tools or AUTO, asked.reasoning or AUTO
    if tools == AUTO:
        own = _tools_in(source) or (of_family.tools if "tools" in source else None)
        tools = own or (GENERIC_NAME if source else NONE)
    if reasoning == AUTO:
        reasoning = _reasoning_in(source, family) or (of_family.reasoning if not source else None) or NONE
    if tools == "openai" and asked.reasoning is None:
        reasoning = HARMONY_REASONING
    return ChosenParsers(
        ParserNames(None if tools == NONE else tools, None if reasoning == NONE else reasoning), mark_ids
    )


def _tools_in(template: str) -> str | None:
    if "tools" not in template:
        return "openai" if all(mark in template for mark in HARMONY.in_template) else None
    for name, one in TOOL_FORMATS.items():
        if one.in_template and all(mark in template for mark in one.in_template):
            return name
    return None


def _reasoning_in(template: str, family: str | None) -> str | None:
    if all(mark in template for mark in HARMONY.in_template):
        return HARMONY_REASONING
    for name, marks in REASONING.items():
        if marks is not _THINK and (marks.begins[0] in template or marks.ends[0] in template):
            return name
    return _THINKERS.get(family or "", "qwen3") if "</think>" in template else None


def _tool_format(name: str) -> ToolFormat:
    if name in TOOL_FORMATS:
        return TOOL_FORMATS[name]
    if ":" in name:
        return ToolFormat(_plugin(name))
    raise ParserError(f"There is no tool parser {name!r}; known are {', '.join(TOOL_FORMATS)}, {AUTO} and {NONE}.")


def _reasoning(name: str) -> ReasoningMarks:
    if name in REASONING:
        return REASONING[name]
    raise ParserError(
        f"There is no reasoning parser {name!r}; known are {', '.join(REASONING_NAMES)}, {AUTO} and {NONE}."
    )


def _plugin(name: str) -> Callable[[Sequence[Tool]], AnswerParser]:
    """Load a plugin's class, which is called with the tools of each answer. Raises ParserError."""
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(import_module(module_name), class_name)
    except Exception as error:  # a plugin may raise anything
        raise ParserError(
            f"--tool-parser {name} cannot be loaded ({type(error).__name__}: {error}); write package.module:Class, "
            "with the package on PYTHONPATH."
        ) from None
    if not callable(found):
        raise ParserError(f"--tool-parser {name} is a {type(found).__name__}; name a class that takes the tools.")
    made: Callable[[Sequence[Tool]], AnswerParser] = found
    return made
