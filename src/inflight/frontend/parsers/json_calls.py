"""Parse tool calls that are JSON objects with a name and arguments, or lists of them; formats add their marks."""

from __future__ import annotations

import json

from inflight.frontend.parsers.pull_parser import PullParser, Steps

_ARGUMENTS = ("arguments", "parameters")


class JsonCallParser(PullParser):
    """Base class of such formats."""

    def json_calls(self, mark: str, needs_arguments: bool = False) -> Steps[None]:
        """Parse one call or a list of calls after a mark. Other text is content, with the mark before it."""
        self.record()
        yield from self.white()
        is_list = bool((yield from self.literal("[")))
        before = mark
        while True:
            before += self.recorded()
            self.record()
            yield from self.white()
            if not (yield from self.json_call(needs_arguments)):
                self.no_call(before)
                return
            before = ""
            self.record()
            yield from self.white()
            if not is_list or not (yield from self.literal(",")):
                break
        if is_list and not (yield from self.literal("]")):
            self.no_call("")
        elif not is_list:
            self.no_call("")  # white space
        else:
            self.recorded()

    def json_call(self, needs_arguments: bool = False) -> Steps[bool]:
        """Parse one object. Return False if it is no call; its text is still recorded.

        Args:
            needs_arguments: Whether an object with only a name is no call.
        """
        if not (yield from self.literal("{")):
            return False
        name, early, is_begun = "", "", False  # early: arguments before the name
        while True:
            if is_begun:
                self.record()
            if (key := (yield from self._key())) is None:
                break
            if key == "name" and not is_begun:
                name = (yield from self.json_string()) or ""
                if not name:
                    return False
            elif key in _ARGUMENTS and not is_begun and name and not early:
                self.recorded()
                self.begin_call(name)
                is_begun = True
                yield from self._arguments()
            else:
                parts: list[str] = []
                yield from self.json_value(parts.append)
                early = "".join(parts) if key in _ARGUMENTS else early
        if is_begun:
            self.no_call("")  # text after the arguments
        is_whole = bool((yield from self.literal("}")))
        if is_begun:
            return True
        if not name or not is_whole or (needs_arguments and not early):
            return False
        self.recorded()
        self.begin_call(name, early or "{}")
        return True

    def json_string(self) -> Steps[str | None]:
        """Parse a JSON string; None: there is no string."""
        yield from self.white()
        if (yield from self.next_character()) != '"':
            return None
        parts: list[str] = []
        yield from self.json_value(parts.append)
        return _text_of("".join(parts))

    def _key(self) -> Steps[str | None]:
        """Parse the next key with its colon; None: no key follows."""
        yield from self.white()
        if (yield from self.literal(",")):
            yield from self.white()
        key = yield from self.json_string()
        yield from self.white()
        return key if key is not None and (yield from self.literal(":")) else None

    def _arguments(self) -> Steps[None]:
        """Parse arguments, which some models write as a string that holds JSON."""
        yield from self.white()
        if (yield from self.next_character()) != '"':
            yield from self.json_value(self.arguments)
            return
        parts: list[str] = []
        yield from self.json_value(parts.append)
        written = "".join(parts)
        self.arguments(_text_of(written) or written)


def _text_of(written: str) -> str | None:
    """Decode a JSON string; None: it is no string."""
    try:
        found = json.loads(written, strict=False)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
