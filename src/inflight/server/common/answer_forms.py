"""The form of an answer: the grammar that a body asks for, and the tools that its answer may call.

How large and deep a schema may be is checked here, so that the engine is given what is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec
from msgspec import UnsetType, structs

from inflight.core.types.sampling import MAX_SOURCE_CHARS, Grammar
from inflight.counted import shortened
from inflight.frontend.parsers.generic import GENERIC_NAME
from inflight.frontend.parsers.parser_choice import ParserChoice, ParserNames
from inflight.server.common.conversation import ChatBody, Prompts
from inflight.server.common.fields import (
    FORM_FIELDS,
    GenerationSettings,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
)
from inflight.server.common.schemas import check_length, check_schema, schema_text
from inflight.server.common.tools import AskedTools, tools_of
from inflight.server.errors import invalid
from inflight.server.parsers import after_reasoning

MAX_REGEX_CHARS = 1 << 14
_NO_FORM = (None, False)
_OPTIONS = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def grammar_of(body: GenerationSettings) -> Grammar | None:
    """Return the grammar that a body asks for; None where any text will do. Raises ApiError."""
    found: dict[str, Grammar] = {}
    for name in FORM_FIELDS:
        value = getattr(body, name)
        if value is not None and (grammar := _READ[name](value)) is not None:
            found[name] = grammar
    if len(found) > 1:
        first, second, *_ = found
        raise invalid(f"{first} and {second} both constrain the answer; give one.", second)
    return next(iter(found.values()), None)


def _response_format(asked: ResponseFormat) -> Grammar | None:
    if isinstance(asked, JsonObjectFormat):
        return Grammar("json_object")
    if isinstance(asked, JsonSchemaFormat):
        schema = asked.json_schema.schema_
        if isinstance(schema, UnsetType):
            raise invalid("response_format.json_schema has no schema; give one.", "response_format", "missing_field")
        return Grammar("json_schema", schema_text(schema, "response_format.json_schema.schema"))
    if isinstance(asked, StructuralTagFormat):
        return _structural_tag(msgspec.json.encode(asked).decode(), "response_format")
    return None


def _structured_outputs(asked: StructuredOutputs) -> Grammar | None:
    for option in _OPTIONS[1:]:
        if getattr(asked, option):
            raise invalid(
                f"The field 'structured_outputs.{option}' is not supported: the layout of JSON cannot be configured.",
                f"structured_outputs.{option}",
                "unsupported_field",
            )
    forms = [name for name in asked.__struct_fields__ if name not in _OPTIONS and getattr(asked, name) not in _NO_FORM]
    if len(forms) != 1:
        raise invalid(
            f"structured_outputs has {' and '.join(forms) or 'no constraint'}; give exactly one of json, regex, "
            "choice, grammar, json_object and structural_tag.",
            "structured_outputs",
        )
    name = forms[0]
    value, place = getattr(asked, name), f"structured_outputs.{name}"
    if name == "json":
        return Grammar("json_schema", schema_text(value, place))
    if name == "regex":
        return _source("regex", value, place)
    if name == "choice":
        return _choice(value, place)
    if name == "grammar":
        return _source("lark", value, place)
    return Grammar("json_object") if name == "json_object" else _structural_tag(value, place)


def _structural_tag(source: str, place: str) -> Grammar:
    try:
        tag = msgspec.json.decode(source, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(f"{place} is not a structural tag in JSON: {shortened(str(error))}.", place) from None
    check_schema(tag, place)
    check_length(source, place)
    return Grammar("structural_tag", source)


def _source(kind: Literal["regex", "lark"], value: str, place: str) -> Grammar:
    check_length(value, place, MAX_REGEX_CHARS if kind == "regex" else MAX_SOURCE_CHARS)
    return Grammar(kind, value)


def _choice(value: list[str], place: str) -> Grammar:
    if "" in value:
        raise invalid(f"{place} holds an empty text at {value.index('')}; leave it out.", place)
    source = msgspec.json.encode(value).decode()
    check_length(source, place)
    return Grammar("choice", source)


_READ: dict[str, Any] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": lambda value: Grammar("json_schema", schema_text(value, "guided_json")),
    "guided_regex": lambda value: _source("regex", value, "guided_regex"),
    "guided_choice": lambda value: _choice(value, "guided_choice"),
    "guided_grammar": lambda value: _source("lark", value, "guided_grammar"),
}


class AnswerForms:
    def __init__(self, prompts: Prompts, keeps_grammars: bool, parsers: ParserChoice | None):
        """keeps_grammars: the engine applies grammars. parsers: of the model's answers; None where none is known."""
        self._prompts, self._keeps_grammars, self._parsers = prompts, keeps_grammars, parsers

    def opens_in_reasoning(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins within its reasoning."""
        return self._parsers is not None and self._parsers.opens_in_prompt(prompt)

    def tools(self, body: ChatBody) -> AskedTools:
        """Return the tools of a body. Raises ApiError if the model is shown none, or its calls are not parsed."""
        tools, names = tools_of(body), ParserNames() if self._parsers is None else self._parsers.names
        if not tools.callable or not self._prompts.encoder.can_chat:  # what renders the messages reports the latter
            return tools
        if names.tools is None or not self._prompts.shows_tools:
            why = f"--tool-parser {names.tools}" if names.tools else "--tool-parser none"
            why += "" if self._prompts.shows_tools else ", and the model's chat template shows no tools"
            field = "functions" if tools.old else "tools"
            raise invalid(
                f"The field {field!r} is not supported by this server ({why}); start it without --tool-parser, or with "
                "--tool-parser generic.",
                field,
                "unsupported_field",
            )
        if names.tools == GENERIC_NAME and body.parallel_tool_calls is None:
            # Small models, which often need this form, would repeat a call until the answer is cut off.
            tools = replace(tools, choice=structs.replace(tools.choice, parallel=False))
        return tools

    def of_body(self, body: GenerationSettings) -> Grammar | None:
        """Return the grammar that the body asks for. Raises ApiError."""
        grammar = grammar_of(body)
        if grammar is not None:
            self._check_keeps_grammars(form_field(body))
        return grammar

    def of_chat(self, body: ChatBody, tools: AskedTools, prompt: str, in_reasoning: bool) -> Grammar | None:
        """Return the grammar of the answer, behind its reasoning, if it has any.

        Where the prompt neither opens nor closes a reasoning, the model chooses by its first tokens.
        """
        parsers, grammar = self._parsers, self.of_body(body)
        if parsers is None:
            return grammar
        if tools.callable:
            content, grammar = grammar, self._form_of_calls(parsers, body, tools, grammar)
            if grammar is not content and parsers.calls_cover_reasoning:
                self._check_no_budget(body)
                return grammar
        marks = parsers.reasoning_ends
        if marks is None or (prompt.rstrip().endswith(marks.end) and not in_reasoning):
            return grammar
        if grammar is None and body.thinking_token_budget is None:
            return None
        self._check_keeps_grammars("thinking_token_budget")
        budget, tokenizer = body.thinking_token_budget, self._prompts.tokenizer
        return after_reasoning(grammar or Grammar("none"), marks, tokenizer, in_reasoning, budget)

    def _check_no_budget(self, body: ChatBody) -> None:
        if body.thinking_token_budget is not None:
            raise invalid(
                "thinking_token_budget cannot be applied to a forced tool call of this model; leave it out, or do not "
                "force a call.",
                "thinking_token_budget",
            )

    def _form_of_calls(
        self, parsers: ParserChoice, body: ChatBody, tools: AskedTools, content: Grammar | None
    ) -> Grammar | None:
        try:
            grammar = parsers.grammar_of_calls(tools.callable, tools.choice, content)
        except ValueError as error:
            raise invalid(str(error), "tool_choice") from None
        if grammar is not None:
            self._check_keeps_grammars(form_field(body))
        return grammar

    def _check_keeps_grammars(self, field: str) -> None:
        if not self._keeps_grammars:
            raise invalid(
                f"The field {field!r} is not supported: this engine does not support structured output; describe the "
                "format in the prompt.",
                field,
                "unsupported_field",
            )


def form_field(body: GenerationSettings) -> str:
    """Return the field that says most of what the answer must be like."""
    named = next((name for name in FORM_FIELDS if getattr(body, name) is not None), None)
    if named is not None or not isinstance(body, ChatBody):
        return named or "response_format"
    if body.thinking_token_budget is not None and not (body.tools or body.functions):
        return "thinking_token_budget"
    return "functions" if body.functions else "tools"
