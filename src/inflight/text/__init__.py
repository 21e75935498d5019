"""Convert text to tokens and back: tokenizer, incremental detokenizer, stop strings, chat template.

Importing it is cheap: `tokenizers` and `jinja2` are imported by the first load and the first rendering.
"""

from __future__ import annotations

from inflight.text.answer_start import AnswerStart
from inflight.text.chat import ChatTemplate, Conversation
from inflight.text.chat_encoder import ChatEncoder, EncodedChat, RenderedChat
from inflight.text.detokenizer import IncrementalDetokenizer
from inflight.text.errors import ChatTemplateError, TemplateVariableError, TokenizerError
from inflight.text.stream import StopStringFinder, TextStream
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
    "TextStream",
    "Tokenizer",
    "TokenizerError",
]
