"""Define the errors of a model's text files and of clients' text, and convert the tokenizer library's errors."""

from __future__ import annotations

from types import TracebackType


class TokenizerError(ValueError):
    """Raised for a tokenizer that cannot be loaded, or for text or token ids that it cannot process."""


class ChatTemplateError(ValueError):
    """Raised for a missing or faulty chat template, or for messages that it cannot render."""


class TemplateVariableError(ChatTemplateError):
    """Raised for a template variable with a reserved name or a value that is no JSON."""


_LONGEST_CAUSE = 300  # characters of the library's own words


class LibraryFaults:
    """Convert all errors of the library within the context to TokenizerError.

    The library raises bare Exceptions, and for a panic of its Rust code a `PanicException`, which is no Exception and
    would end the process. This is a class, since a generator's context costs three times as much, and one token is
    decoded in a microsecond.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        """Set the beginning of the message, such as "This tokenizer cannot take the text"."""
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
    """Return whether the error is the library's: any Exception, or a panic, whose type cannot be imported."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
