"""What can be wrong with a model's text files, or with the text a client sends, told in sentences.

Knows the names of the errors, and what the tokenizer library raises: bare Exceptions, and for a panic of its Rust code
a `PanicException`, which is no Exception at all and would pass every handler between a request and the end of the
process. Each message says what is wrong, names the file or the number that caused it, and says what to do next; it may
be shown to a user as it is. What was being done, whoever calls the library says.
"""

from __future__ import annotations

from types import TracebackType


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded, or a text or token ids that it cannot take."""


class ChatTemplateError(ValueError):
    """No chat template, one that does not work, or messages that it cannot take."""


class TemplateVariableError(ChatTemplateError):
    """A variable for a chat template that the template cannot be given."""


_LONGEST_CAUSE = 300  # characters of the library's own words


class LibraryFaults:
    """Within it, whatever the library raises becomes a TokenizerError, and a TokenizerError stays as it is.

    A class, because a generator's context costs three times as much and one token is decoded in a microsecond.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        """doing: the beginning of the sentence, such as "This tokenizer cannot take the text"."""
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, TokenizerError | MemoryError) or not is_fault(error):
            return
        cause = " ".join(str(error).split())[:_LONGEST_CAUSE] or type(error).__name__
        raise TokenizerError(
            f"{self._doing} ({cause}); if other texts pass, leave out what is odd in this one, else export the "
            "model's tokenizer.json again."
        ) from None


def is_fault(error: BaseException) -> bool:
    """Whether this comes from the library: any Exception, or a panic, whose type cannot be imported."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
