"""What can be wrong with a model's text files, or with the text a client sends, told in sentences.

Knows only the names of the errors. Each message says what is wrong, names the file or the number that caused it, and
says what to do next; it may be shown to a user as it is.
"""

from __future__ import annotations


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded, or a text or token ids that it cannot take."""


class ChatTemplateError(ValueError):
    """No chat template, one that does not work, or messages that it cannot take."""


class TemplateVariableError(ChatTemplateError):
    """A variable for a chat template that the template cannot be given."""
