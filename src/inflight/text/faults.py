"""What the tokenizer library raises, as sentences.

Knows that it raises bare Exceptions, and that a panic of its Rust code comes as a `PanicException`, which is no
Exception at all and would pass every handler between a request and the end of the process. Does not know what was
being done; whoever calls the library says so.
"""

from __future__ import annotations

from types import TracebackType

from .errors import TokenizerError

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
