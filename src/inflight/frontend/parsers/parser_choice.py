"""How the answers of a model are parsed: what a server knows of it once the model is loaded.

Knows tools as a call names them, and what whoever serves calls asks of a choice. Which choices there are, and how one
is made, `registry` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from inflight.core.types.request import ReasoningText
from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.answer_parser import AnswerParser


class Tool(Struct, frozen=True):
    """A function that the model may call. parameters: the JSON schema of its arguments, as JSON text. strict: a call's
    arguments must be valid under it."""

    name: str
    parameters: str = "{}"
    strict: bool = False


class ToolChoice(Struct, frozen=True):
    """Whether tools are called. named: at least one call, of a tool among `names`. parallel: there may be several."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class ParserNames(Struct, frozen=True):
    """Names in the registry. None: answers are not looked at for that."""

    tools: str | None = None
    reasoning: str | None = None


class ReasoningEnds(NamedTuple):
    """What a model writes in front of its reasoning, and behind it."""

    begin: str
    end: str


class ParserChoice(Protocol):
    """How all answers of one model are parsed; each answer has a parser of its own."""

    @property
    def names(self) -> ParserNames: ...

    @property
    def visible_marks(self) -> tuple[str, ...]:
        """Texts that parsers must see, though they may be special tokens, which are otherwise left out of text."""

    @property
    def texts_in_calls(self) -> tuple[str, ...]:
        """Of which every answer with a tool call has one; none where that cannot be told by texts."""

    @property
    def reasoning_ends(self) -> ReasoningEnds | None:
        """None where the model's answers have no reasoning."""

    def reasoning_text(self, is_open: bool) -> ReasoningText | None:
        """Return the texts that open and close an answer's reasoning; None where it has none. is_open: the prompt has
        opened it."""

    @property
    def calls_cover_reasoning(self) -> bool:
        """Whether grammars of calls are of whole answers, their reasoning included."""

    @property
    def short_call_ids(self) -> bool:
        """Whether the chat template takes ids of nine letters and digits alone."""

    def opens_in_prompt(self, prompt_text: str) -> bool:
        """Whether the prompt ends within reasoning."""

    def parser(self, tools: Sequence[Tool], in_reasoning: bool) -> AnswerParser:
        """Of one answer. No tools: calls are looked for nowhere."""

    def grammar_of_calls(self, tools: Sequence[Tool], choice: ToolChoice, content: Grammar | None) -> Grammar | None:
        """What forces the calls that `choice` asks for, and arguments of strict tools. content: what the answer must be
        like where no tool is called. None: nothing is to be forced. Raises ValueError with a sentence where this
        format cannot be forced."""
