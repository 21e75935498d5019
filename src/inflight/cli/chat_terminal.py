"""Read messages of one or several lines from a terminal or a pipe, with a history; wrap an answer's words."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from inflight.cli.summary import show
from inflight.counted import printable
from inflight.private_files import NotPrivate, check_private, make_folders, open_private

QUOTES = '"""'
_MAX_HISTORY = 1000


class Prompt:
    """Lines that are typed. At a terminal they can be edited, and are kept in a private file between conversations."""

    def __init__(self) -> None:
        self._on_terminal = sys.stdin.isatty()
        self._file: Path | None = None
        if self._on_terminal:
            import readline  # noqa: F401  (gives input() editing)

            self._load_history()

    def messages(self) -> Iterator[str]:
        """Yield messages and commands that are not empty, until the end of input. Between three quotes a message has
        several lines."""
        while True:
            try:
                text = self._line("> ").strip()
                if text.startswith(QUOTES):
                    text = self.rest_of(text.removeprefix(QUOTES))
            except EOFError:
                return
            except KeyboardInterrupt:
                show("\n(/bye or Ctrl-D ends.)")
                continue
            if text:
                yield text

    def rest_of(self, begun: str) -> str:
        """Return a text of several lines, whose first is read already, up to three quotes."""
        lines = [begun]
        while not lines[-1].rstrip().endswith(QUOTES):
            try:
                lines.append(self._line(". "))
            except EOFError:
                break
        return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")

    def keep_history(self, is_kept: bool) -> None:
        """Keep the lines that follow in the history, or not."""
        if self._on_terminal:
            import readline

            readline.set_auto_history(is_kept)

    def close(self) -> None:
        """Store the history."""
        if self._file is not None:
            import readline

            with contextlib.suppress(OSError):
                readline.set_history_length(_MAX_HISTORY)
                os.close(open_private(str(self._file), os.O_WRONLY | os.O_CREAT))
                readline.write_history_file(self._file)

    def _line(self, mark: str) -> str:
        return input(mark if self._on_terminal else "")

    def _load_history(self) -> None:
        import readline

        with contextlib.suppress(OSError, RuntimeError, NotPrivate):  # without a home there is no file
            state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
            make_folders(folder := state / "inflight")
            check_private(folder)
            self._file = folder / "chat_history"
            readline.read_history_file(self._file)


class Writer:
    """Print an answer as it comes: on a terminal with words wrapped at its width, elsewhere unchanged."""

    def __init__(self, wraps: bool) -> None:
        self._width = shutil.get_terminal_size().columns - 1 if wraps and sys.stdout.isatty() else 0
        self._column, self._word, self._word_width = 0, "", 0

    def write(self, text: str) -> None:
        """Print a piece. The last word is buffered until it is whole."""
        text = printable(text, keep="\n\t")
        print(text if not self._width else "".join(map(self._wrapped, text)), end="", flush=True)

    def end(self) -> None:
        """Print the buffered word."""
        print(self._flushed(), end="", flush=True)

    def _wrapped(self, character: str) -> str:
        if character == "\n":
            flushed, self._column = self._flushed() + "\n", 0
            return flushed
        if character.isspace():
            flushed = self._flushed()
            if self._column + 1 >= self._width:  # the next word begins a line
                return flushed
            self._column += 1
            return flushed + " "
        self._word += character
        self._word_width += (
            2 if unicodedata.east_asian_width(character) in "WF" else not unicodedata.combining(character)
        )
        if self._word_width >= self._width or unicodedata.east_asian_width(character) in "WF":
            return self._flushed()  # longer than a line, or a script without spaces
        return ""

    def _flushed(self) -> str:
        """Return the buffered word, on the next line where this one has no room."""
        breaks = self._width and self._column and self._column + self._word_width > self._width
        flushed = "\n" * bool(breaks) + self._word
        self._column = (0 if breaks else self._column) + self._word_width
        self._word, self._word_width = "", 0
        return flushed
