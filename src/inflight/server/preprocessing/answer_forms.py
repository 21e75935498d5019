"""What a chat's or completion's answer must be like: the tools that it may call, and the grammar that binds it.

Knows what the body asks and what this model can: whether its template shows tools, how it writes calls and reasoning,
whether the engine binds answers at all. One field alone is read in `structured`, tools in `tools`.
"""

from __future__ import annotations

from dataclasses import replace

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.common import GenerationSettings
from inflight.server.bodies.structured import FIELDS
from inflight.server.errors import invalid
from inflight.server.preprocessing.prompts import Prompts
from inflight.server.preprocessing.structured import grammar_of
from inflight.server.preprocessing.tools import AskedTools, tools_of


class AnswerForms:
    def __init__(self, prompts: Prompts, keeps_grammars: bool, parsers: ParserChoice | None):
        """keeps_grammars: whether the engine binds answers. parsers: of the model's answers; None where nothing is
        known of them."""
        self._prompts, self._keeps_grammars, self._parsers = prompts, keeps_grammars, parsers

    def opens_in_reasoning(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins within its reasoning."""
        return self._parsers is not None and self._parsers.opens_in_prompt(prompt)

    def tools(self, body: ChatBody) -> AskedTools:
        tools = tools_of(body)
        if not tools.callable:
            return tools
        field = "functions" if tools.old else "tools"
        if not self._prompts.template_shows_tools:
            raise invalid(
                f"The field {field!r} is not served with this model: its chat template tells it of no tools; describe "
                "them in a message if the model knows how to use them.",
                field,
                "unsupported_field",
            )
        if self._parsers is None or self._parsers.names.tools is None:
            raise invalid(
                f"The field {field!r} is not served with this model: how it writes calls of tools is not known; name a "
                "--tool-parser at the server's start, or send tool_choice none.",
                field,
                "unsupported_field",
            )
        return tools

    def of_body(self, body: GenerationSettings) -> Grammar | None:
        """What the body says that its answer must be like."""
        grammar = grammar_of(body)
        if grammar is not None:
            self._check_keeps_grammars(form_field(body))
        return grammar

    def of_chat(self, body: ChatBody, tools: AskedTools, prompt: str, in_reasoning: bool) -> Grammar | None:
        """Of the answer, behind its reasoning, if it has any: where the prompt neither opens nor closes one, the model
        chooses by its first tokens."""
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
        return replace(
            grammar or Grammar("none"),
            after_token_ids=self._tokens(marks.end),
            max_tokens_before=body.thinking_token_budget,
            opening_token_ids=() if in_reasoning else self._tokens(marks.begin),
        )

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._prompts.tokenizer.encode(text, add_special_tokens=False))

    def _check_no_budget(self, body: ChatBody) -> None:
        if body.thinking_token_budget is not None:
            raise invalid(
                "thinking_token_budget cannot be kept here: this model writes forced calls and their reasoning in one "
                "form; leave it out, or ask for no calls.",
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
                f"The field {field!r} is not served: this engine binds no answers to schemas and grammars; ask for "
                "the form in the prompt.",
                field,
                "unsupported_field",
            )


def form_field(body: GenerationSettings) -> str:
    """The field that says most of what the answer must be like."""
    named = next((name for name in FIELDS if getattr(body, name) is not None), None)
    if named is not None or not isinstance(body, ChatBody):
        return named or "response_format"
    if body.thinking_token_budget is not None and not (body.tools or body.functions):
        return "thinking_token_budget"
    return "functions" if body.functions else "tools"
