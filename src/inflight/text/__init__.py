"""Convert text to tokens and back. Importing loads neither `tokenizers` nor `jinja2`."""

from __future__ import annotations

from inflight.text.chat import ChatTemplate, Conversation
from inflight.text.chat_encoder import ChatEncoder, EncodedChat, RenderedChat
from inflight.text.detokenizer import IncrementalDetokenizer
from inflight.text.errors import ChatTemplateError, TemplateVariableError, TokenizerError
from inflight.text.stream import AnswerStart, StopStringFinder, TextStream
from inflight.text.text_files import TextFiles
from inflight.text.tokenizer import Tokenizer

__all__ = [
    "AnswerStart",
    "ChatEncoder",
    "ChatTemplate",
    "ChatTemplateError",
    "Conversation",
    "EncodedChat",
    "IncrementalDetokenizer",
    "RenderedChat",
    "StopStringFinder",
    "TemplateVariableError",
    "TextFiles",
    "TextStream",
    "Tokenizer",
    "TokenizerError",
]
