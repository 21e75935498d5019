"""Define tools, tool choice and the interface of a model's parsers; `registry` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from inflight.core.types.request import ReasoningText
from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.answer_parser import AnswerParser


class Tool(Struct, frozen=True):
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of the arguments, as JSON text.
        strict: Whether arguments must be valid under the schema.
    """

    name: str
    parameters: str = "{}"
    strict: bool = False


class ToolChoice(Struct, frozen=True):
    """Which tools an answer calls.

    Attributes:
        mode: "named": at least one call, of a tool among `names`.
        parallel: Whether there may be several calls.
    """

    mode: Literal["none", "auto", "required", "named"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class ParserNames(Struct, frozen=True):
    """Names of parsers in the registry; None: tool calls or reasoning are not parsed."""

    tools: str | None = None
    reasoning: str | None = None


class ReasoningEnds(NamedTuple):
    """The texts that a model writes before and after its reasoning."""

    begin: str
    end: str


class ParserChoice(Protocol):
    """The parsers of one model; each answer gets a parser of its own."""

    @property
    def names(self) -> ParserNames: ...

    @property
    def visible_marks(self) -> tuple[str, ...]:
        """Marks that parsers must see in the text, also if they are special tokens, which text otherwise omits."""

    @property
    def texts_in_calls(self) -> tuple[str, ...]:
        """Texts one of which is in every answer with a tool call; empty: the format has no such texts."""

    @property
    def reasoning_ends(self) -> ReasoningEnds | None:
        """The marks of reasoning; None: the model's answers have none."""

    def reasoning_text(self, is_open: bool) -> ReasoningText | None:
        """Return the texts that open and close an answer's reasoning; None: there is none.

        Args:
            is_open: Whether the prompt has opened the reasoning.
        """

    @property
    def calls_cover_reasoning(self) -> bool:
        """Whether grammars of calls include the reasoning."""

    @property
    def short_call_ids(self) -> bool:
        """Whether the chat template accepts only ids of nine letters and digits."""

    def opens_in_prompt(self, prompt_text: str) -> bool:
        """Return whether the prompt ends within reasoning."""

    def parser(self, tools: Sequence[Tool], in_reasoning: bool) -> AnswerParser:
        """Make the parser of one answer. Without tools, calls are not parsed."""

    def grammar_of_calls(self, tools: Sequence[Tool], choice: ToolChoice, content: Grammar | None) -> Grammar | None:
        """Return a grammar that forces the calls of `choice`, its limits, and the arguments of strict tools.

        None: nothing is forced.

        Args:
            tools: That may be called.
            choice: Of tools.
            content: Grammar of an answer without a call.

        Raises:
            ValueError: This format cannot be forced; the message says why.
        """
