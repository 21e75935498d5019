"""A conversation to the tokens of a prompt: the template writes it, and nothing that a client wrote becomes control.

Knows when a conversation must be rendered twice: first as it is, and, where a client's text could make a control
token, again with its marks hidden. Does not know templates (`chat`), control tokens (`control`) or how the two kinds of
text are encoded (`apart`).

A conversation without control strings has the very ids that transformers' `apply_chat_template` gives it.
"""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from inflight.text.apart import ApartEncoder, CompiledApartEncoder
from inflight.text.chat import ChatTemplate, Conversation
from inflight.text.control import ControlTokens
from inflight.text.tokenizer import Tokenizer


class RenderedChat(Struct, frozen=True):
    """What a template made of a conversation. parts: None, or the same as text and control tokens in turn, where text
    holds what looks like control tokens and is none."""

    text: str
    parts: tuple[str, ...] | None = None


class EncodedChat(Struct, frozen=True):
    text: str
    token_ids: tuple[int, ...]


class ChatEncoder:
    """One model's template and tokenizer. May be shared by threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, parse_control_tokens: bool = False) -> None:
        """parse_control_tokens: what messages spell as a control token is one, as it was before anybody minded."""
        self._tokenizer = tokenizer
        self._template = template
        self._parses = parse_control_tokens

    @cached_property
    def _control(self) -> ControlTokens:
        template = self._template
        return ControlTokens(
            self._tokenizer.added_tokens, template.written, template.looked_for(), template.changes_text()
        )

    @cached_property
    def _apart(self) -> ApartEncoder | CompiledApartEncoder:
        return self._tokenizer.apart(self._control.contents)

    def prepare(self) -> None:
        """Do now what the first conversation would do: compile the templates, look control tokens up. Raises
        ChatTemplateError and TokenizerError."""
        self._template.compile()
        if not self._parses and self._template.is_available:
            _ = self._apart

    def render(self, conversation: Conversation) -> RenderedChat:
        """As `ChatTemplate.render`, whose errors it raises."""
        given = self._template.check(conversation)
        text = self._template.write(given)
        others = (given.tools, given.variables)
        if self._parses or not self._control.may_be_made_by(given.messages, others):
            return RenderedChat(text)
        hiding = self._control.hiding(given.messages, others)
        hidden = replace(
            given,
            messages=[hiding.message(message) for message in given.messages],
            tools=hiding.other(given.tools),
            variables=hiding.other(given.variables),
        )
        parts = self._control.split(self._template.write(hidden))
        if parts[1::2] == self._control.split(text)[1::2]:
            return RenderedChat(text)  # it only looked as if
        shown = tuple(part if place % 2 else hiding.shown(part) for place, part in enumerate(parts))
        return RenderedChat("".join(shown), shown)

    def token_ids(self, rendered: RenderedChat) -> list[int]:
        """Raises TokenizerError."""
        if rendered.parts is None:
            return self._tokenizer.encode(rendered.text, add_special_tokens=False)
        return self._apart.encode(rendered.parts)
