"""Calls that are JSON objects with a name and arguments, as several formats write them between marks of their own.

Knows the object and lists of such objects; not the marks around them.
"""

from __future__ import annotations

import json

from inflight.frontend.parsers.pull_parser import PullParser, Steps

_ARGUMENTS = ("arguments", "parameters")


class JsonCallParser(PullParser):
    """The walk is the format's."""

    def json_calls(self, mark: str, needs_arguments: bool = False) -> Steps[None]:
        """What follows a mark: one call, or a list of them. What is none is content, with the mark in front of it."""
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
        """One object. False: it is no call, and what was consumed of it is still recorded. needs_arguments: an object
        with a name alone is none."""
        if not (yield from self.literal("{")):
            return False
        name, held, is_told = "", "", False
        while True:
            if is_told:
                self.record()
            if (key := (yield from self._key())) is None:
                break
            if key == "name" and not is_told:
                name = (yield from self.json_string()) or ""
                if not name:
                    return False
            elif key in _ARGUMENTS and not is_told and name and not held:
                self.recorded()
                self.begin_call(name)
                is_told = True
                yield from self._arguments()
            else:
                parts: list[str] = []
                yield from self.json_value(parts.append)
                held = "".join(parts) if key in _ARGUMENTS else held
        if is_told:
            self.no_call("")  # what follows the arguments, if anything does
        is_whole = bool((yield from self.literal("}")))
        if is_told:
            return True
        if not name or not is_whole or (needs_arguments and not held):
            return False
        self.recorded()
        self.begin_call(name, held or "{}")
        return True

    def json_string(self) -> Steps[str | None]:
        """None: what is there is no string."""
        yield from self.white()
        if (yield from self.next_character()) != '"':
            return None
        parts: list[str] = []
        yield from self.json_value(parts.append)
        return _text_of("".join(parts))

    def _key(self) -> Steps[str | None]:
        """The next key with its colon; None where none follows."""
        yield from self.white()
        if (yield from self.literal(",")):
            yield from self.white()
        key = yield from self.json_string()
        yield from self.white()
        return key if key is not None and (yield from self.literal(":")) else None

    def _arguments(self) -> Steps[None]:
        """Some models write them as a string that holds JSON."""
        yield from self.white()
        if (yield from self.next_character()) != '"':
            yield from self.json_value(self.arguments)
            return
        parts: list[str] = []
        yield from self.json_value(parts.append)
        written = "".join(parts)
        self.arguments(_text_of(written) or written)


def _text_of(written: str) -> str | None:
    """What a JSON string says."""
    try:
        found = json.loads(written, strict=False)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
