"""Encode a conversation as a prompt in which no client's text becomes a control token."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from inflight.text.chat import ChatTemplate, Conversation
from inflight.text.control import ControlTokens
from inflight.text.separate_encoding import CompiledSeparateEncoder, SeparateEncoder
from inflight.text.tokenizer import Tokenizer


class RenderedChat(Struct, frozen=True):
    """A rendered conversation.

    Attributes:
        parts: The text as alternating texts and control tokens, if the text contains strings that only look like
            control tokens; else None.
    """

    text: str
    parts: tuple[str, ...] | None = None


class EncodedChat(Struct, frozen=True):
    text: str
    token_ids: tuple[int, ...]


class ChatEncoder:
    """One model's template and tokenizer; safe to share between threads.

    If a client's text could form a control token, the conversation is rendered a second time with its marks hidden. A
    conversation without control strings has the same ids as by transformers' `apply_chat_template`.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, parse_control_tokens: bool = False) -> None:
        """Make an encoder. parse_control_tokens: read control tokens that messages spell as tokens, not as text."""
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
    def _encoder(self) -> SeparateEncoder | CompiledSeparateEncoder:
        return self._tokenizer.separate_encoder(self._control.contents)

    def prepare(self) -> None:
        """Compile the templates and look up control tokens now. Raises ChatTemplateError and TokenizerError."""
        self._template.compile()
        if not self._parses and self._template.is_available:
            _ = self._encoder

    def render(self, conversation: Conversation) -> RenderedChat:
        """Render as `ChatTemplate.render` does, with its errors."""
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
        """Encode a rendered conversation. Raises TokenizerError."""
        if rendered.parts is None:
            return self._tokenizer.encode(rendered.text, add_special_tokens=False)
        return self._encoder.encode(rendered.parts)
