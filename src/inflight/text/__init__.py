"""Text in and out: tokenizer, incremental detokenizer, stop strings, chat template.

Knows the files of a Hugging Face folder that concern text. Does not know the scheduler, the server or the model's
weights. Importing it is cheap: `tokenizers` and `jinja2` are imported by the first load and the first rendering.
"""

from __future__ import annotations

from .chat import ChatTemplate
from .chat_encoder import ChatEncoder, EncodedChat, RenderedChat
from .conversation import Conversation
from .detokenizer import IncrementalDetokenizer
from .errors import ChatTemplateError, TemplateVariableError, TokenizerError
from .stops import StopStringFinder
from .stream import TextStream
from .tokenizer import Tokenizer

__all__ = [
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
