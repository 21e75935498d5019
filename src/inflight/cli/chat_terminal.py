"""Read messages of one or several lines from a terminal or a pipe, with a history; wrap an answer's words."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from inflight.cli.summary import show
from inflight.counted import printable
from inflight.private_files import NotPrivate, check_private, make_folders, open_private

QUOTES = '"""'
_MAX_HISTORY = 1000


class Prompt:
    """Lines that are typed. At a terminal they can be edited, and are kept in a private file between conversations."""

    def __init__(self) -> None:
        self._on_terminal = sys.stdin.isatty()
        self._history: History | None = None
        self._is_kept = True
        if self._on_terminal:
            import readline

            with contextlib.suppress(OSError, RuntimeError, NotPrivate):  # without a home there is no file
                self._history = History()
                for line in self._history.lines():
                    readline.add_history(line)

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
        self._is_kept = is_kept
        if self._on_terminal:
            import readline

            readline.set_auto_history(is_kept)

    def _line(self, mark: str) -> str:
        line = input(mark if self._on_terminal else "")
        if self._history is not None and self._is_kept and line.strip():
            with contextlib.suppress(OSError):
                self._history.append(line)
        return line


class History:
    """The file of lines that conversations of this user have had. Each line is appended when it is typed, under a lock,
    so that conversations at the same time lose none of each other's."""

    def __init__(self) -> None:
        """Find the file. Raises OSError, RuntimeError, NotPrivate."""
        state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        make_folders(folder := state / "inflight")
        check_private(folder)
        self._path = folder / "chat_history"

    def lines(self) -> list[str]:
        """Return the last lines. A file that has many more is cut down to them."""
        with self._locked() as file:
            lines = file.read().splitlines()
            if len(lines) > 2 * _MAX_HISTORY:
                file.seek(0)
                file.truncate()
                file.write("".join(f"{line}\n" for line in lines[-_MAX_HISTORY:]))
        return lines[-_MAX_HISTORY:]

    def append(self, line: str) -> None:
        """Store a line. Raises OSError."""
        with self._locked() as file:
            file.write(f"{line}\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[str]]:
        with open(self._path, "a+", encoding="utf-8", errors="surrogateescape", opener=open_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            file.seek(0)
            yield file


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
